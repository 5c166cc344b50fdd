"""Learned position biases, as numbers and as pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reattend.analysis.biases import LearnedBias, biases_figure, learned_biases
from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.aft.conv import AFTConv
from reattend.attention.aft.full import AFTFull
from reattend.attention.aft.local import AFTLocal
from reattend.attention.aft.simple import AFTSimple


def spec(**changes: Any) -> MixerSpec:
    return MixerSpec(**{"dim": 8, "num_heads": 2, "max_length": 6, **changes})


def filled(mixer: nn.Module) -> Any:
    """The mixer in evaluation with all parameters away from where they start."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(0, 0.7)
    return mixer.double().eval()


def test_biases_of_a_free_matrix_and_of_factors() -> None:
    mixer = filled(AFTFull(spec(layer=3, num_layers=5)))
    (bias,) = learned_biases(mixer)
    assert bias.layer == 3
    assert bias.centre is None
    np.testing.assert_allclose(bias.values, np.exp(mixer.bias.weight.detach().numpy()) - 1, rtol=1e-12)
    mixer = filled(AFTFull(spec(), bias_rank=2))
    u, v = (x.detach().numpy() for x in mixer.bias.factors())
    np.testing.assert_allclose(learned_biases(mixer)[0].values, np.exp(u @ v.T) - 1, rtol=1e-12)


def test_a_small_bias_keeps_its_digits() -> None:
    mixer = filled(AFTFull(spec()))
    with torch.no_grad():
        mixer.bias.weight.fill_(1e-12)
    np.testing.assert_allclose(learned_biases(mixer)[0].values, 1e-12, rtol=1e-9)


def test_what_a_causal_token_does_not_see_is_nan() -> None:
    values = learned_biases(filled(AFTFull(spec(causal=True))))[0].values
    assert np.array_equal(np.isnan(values), np.triu(np.ones((6, 6), dtype=bool), 1))


@pytest.mark.parametrize("outside", ["zero", "minus_infinity"])
def test_a_window_has_no_bias_outside_or_sees_nothing_there(outside: Any) -> None:
    values = learned_biases(filled(AFTLocal(spec(), window=2, outside=outside)))[0].values
    distance = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    beyond = values[distance >= 2]
    assert (np.isnan(beyond) if outside == "minus_infinity" else beyond == 0).all()
    assert (np.abs(values[distance < 2]) > 0).all()


@pytest.mark.parametrize("extents", [None, (2, 3), (1, 2, 3)])
def test_filters_are_those_that_act(extents: tuple[int, ...] | None) -> None:
    mixer = filled(AFTConv(spec(grid=extents), kernel_size=3))
    (bias,) = learned_biases(mixer)
    weight = mixer.weight.detach().numpy()
    axes = tuple(range(1, weight.ndim))
    normal = (weight - weight.mean(axes, keepdims=True)) / weight.std(axes, keepdims=True)
    gamma, beta = (x.detach().numpy().reshape(-1, *[1] * len(axes)) for x in (mixer.gamma, mixer.beta))
    np.testing.assert_allclose(bias.values, np.exp(gamma * normal + beta) - 1, rtol=1e-10)
    assert bias.centre == 1


def test_a_causal_filter_reaches_back_and_signed_ones_are_the_weights_less_one() -> None:
    assert learned_biases(filled(AFTConv(spec(causal=True), kernel_size=4)))[0].centre == 3
    mixer = filled(AFTConv(spec(), kernel_size=3, signed=True))
    np.testing.assert_allclose(learned_biases(mixer)[0].values, mixer.filters().detach().numpy(), rtol=1e-12)


def test_others_learn_none_and_layers_come_in_order() -> None:
    none = [AFTSimple(spec()), AFTLocal(spec(), window=0), MultiHeadAttention(spec())]
    model = nn.ModuleList([*none, AFTConv(spec(layer=3, num_layers=5)), AFTFull(spec(layer=4, num_layers=5))])
    assert learned_biases(nn.ModuleList(none)) == []
    assert [bias.layer for bias in learned_biases(model)] == [3, 4]


def images(figure: Any) -> list[Any]:
    return [image for axes in figure.get_axes() for image in axes.get_images()]


def test_matrices_share_a_scale_about_zero() -> None:
    values = [np.full((4, 4), 0.1), np.full((4, 4), -0.9)]
    values[0][0, 1] = math.nan
    figure = biases_figure([LearnedBias(layer, matrix) for layer, matrix in enumerate(values)], "a title")
    assert [image.get_clim() for image in images(figure)] == [(-0.9, 0.9)] * 2
    np.testing.assert_array_equal(images(figure)[1].get_array(), values[1])
    assert [axes.get_title() for axes in figure.get_axes()[:2]] == ["layer 0", "layer 1"]
    assert figure.get_suptitle() == "a title"
    (bar,) = figure.get_axes()[2:]
    assert bar.get_ylabel() == "exp(w) − 1"


def test_each_filter_of_a_sequence_is_stems_at_its_offsets() -> None:
    biases = [LearnedBias(layer, np.array([[0.1, -0.2, 0.3]] * 9), 2) for layer in (0, 4)]
    figure = biases_figure(biases, "")
    drawn = [axes for axes in figure.get_axes() if axes.axison]
    assert len(drawn) == 18
    assert drawn[-1].get_title() == "layer 4, filter 8"
    stems: list[Any] = [collection.get_segments() for collection in drawn[9].collections]
    np.testing.assert_allclose(stems[0], [[[-2, 0], [-2, 0.1]], [[-1, 0], [-1, -0.2]], [[0, 0], [0, 0.3]]])


def test_each_layer_begins_a_row_of_panels() -> None:
    figure = biases_figure([LearnedBias(layer, np.ones((10, 3)), 1) for layer in (0, 1)], "")
    drawn = [axes for axes in figure.get_axes() if axes.axison]
    starts = [axes.get_subplotspec().colspan.start for axes in drawn if axes.get_title().endswith("filter 0")]  # type: ignore[union-attr]
    assert starts == [0, 0]


@pytest.mark.parametrize(("shape", "shown"), [((3, 3), (3, 3)), ((3, 3, 3), (3, 11))])
def test_filters_of_a_grid_are_images(shape: tuple[int, ...], shown: tuple[int, int]) -> None:
    values = np.arange(2.0 * math.prod(shape)).reshape(2, *shape)
    figure = biases_figure([LearnedBias(0, values, 1)], "")
    first, second = (np.ma.filled(image.get_array(), math.nan) for image in images(figure))
    assert first.shape == shown
    np.testing.assert_array_equal(np.ravel(second[:, -3:]), np.ravel(values[1].reshape(-1, 3, 3)[-1]))
    left, right, bottom, top = images(figure)[0].get_extent()
    assert (left, bottom, top) == (-1.5, 1.5, -1.5)
    assert right - left == shown[1]


def test_matrices_and_filters_stand_in_one_picture() -> None:
    figure = biases_figure([LearnedBias(0, np.ones((4, 4))), LearnedBias(1, np.ones((2, 3)), 1)], "")
    titles = [axes.get_title() for axes in figure.get_axes() if axes.get_title()]
    assert titles == ["layer 0", "layer 1, filter 0", "layer 1, filter 1"]


def test_biases_of_zero_can_be_drawn() -> None:
    figure = biases_figure([LearnedBias(0, np.zeros((4, 4)))], "")
    assert images(figure)[0].get_clim() == (-1, 1)


def test_gradients_do_not_hinder(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = filled(AFTConv(spec(), kernel_size=3))
    seen: list[Tensor] = []
    filters = AFTConv.filters
    monkeypatch.setattr(AFTConv, "filters", lambda self: seen.append(filters(self)) or seen[-1])
    assert isinstance(learned_biases(mixer)[0].values, np.ndarray)
    assert seen[0].requires_grad


def test_of_many_filters_some_are_shown_by_their_numbers() -> None:
    bias = LearnedBias(0, np.random.default_rng(0).normal(size=(192, 3, 3)), 1)
    figure = biases_figure([bias], "title")
    titles = [axes.get_title() for part in figure.subfigs for axes in part.axes if axes.get_title()]
    assert titles == [f"layer 0, filter {index}" for index in range(0, 192, 12)]
