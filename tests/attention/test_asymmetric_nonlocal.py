"""Attention to a pyramid of averages: the twin, torch's adaptive pooling, padding, grids and extremes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.kernels.asymmetric_nonlocal import AsymmetricNonlocalKernel
from reattend.errors import ReattendError


def options(*sizes: int) -> dict[str, Any]:
    return {"kernel": {"name": "asymmetric_nonlocal", "sizes": list(sizes)}}


def padding(length: int, prefix: int = 0) -> Tensor:
    """Padding anywhere, one real token, and none."""
    mask = torch.rand(4, length, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[2:] = False
    mask[2, length // 2] = True
    return mask


@pytest.mark.parametrize("sizes", [(1,), (1, 3), (2, 5)])
@pytest.mark.parametrize(
    ("length", "grid", "prefix"),
    [(13, None, 0), (3, None, 0), (8, None, 2), (12, (3, 4), 0), (13, (3, 4), 1), (8, (2, 2, 2), 0), (7, (7,), 0)],
)
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    build: Any,
    errors_to_twin: Any,
    sizes: tuple[int, ...],
    length: int,
    grid: tuple[int, ...] | None,
    prefix: int,
    padded: bool,
) -> None:
    mixer = build(options(*sizes), length=length, grid=grid, prefix_tokens=prefix)
    x = torch.randn(4, length, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, padding(length) if padded else None)
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize("std", [False, True])
def test_it_goes_with_recentring(build: Any, errors_to_twin: Any, std: bool) -> None:
    mixer = build(options(1, 3) | {"recenter": {"beta": 0.7, "std": std}}, length=12, grid=(3, 4))
    forward, backward = errors_to_twin(mixer, torch.randn(4, 12, 8, dtype=torch.float64), padding(12))
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize("grid", [(14, 14), (9, 10), (3, 20)])
def test_anchors_are_torchs_adaptive_pooling(grid: tuple[int, int]) -> None:
    """The published code's pooling; 110 anchors."""
    length = grid[0] * grid[1]
    kernel = AsymmetricNonlocalKernel(MixerSpec(8, 2, length, grid=grid))
    q, k, v = (torch.randn(3, 2, length, 4, dtype=torch.float64) for _ in range(3))
    pooled = []
    for x in (k, v):
        image = x.mT.flatten(0, 1).unflatten(2, grid)
        levels = [F.adaptive_avg_pool2d(image, size).flatten(2) for size in (1, 3, 6, 8)]
        pooled.append(torch.cat(levels, dim=2).mT.unflatten(0, (3, 2)))
    assert pooled[0].shape[2] == kernel.num_anchors() == 110
    assert torch.allclose(kernel(q, k, v), F.scaled_dot_product_attention(q, *pooled), atol=1e-12)


def test_anchors_of_a_sequence_are_as_many() -> None:
    kernel = AsymmetricNonlocalKernel(MixerSpec(8, 2, 200))
    assert kernel.num_anchors() == 110
    k = torch.randn(1, 2, 200, 4, dtype=torch.float64)
    levels = [F.adaptive_avg_pool1d(k.mT.flatten(0, 1), n**2) for n in (1, 3, 6, 8)]
    pooled = torch.cat(levels, dim=2).mT[None]
    assert torch.allclose(kernel(k, k, k), F.scaled_dot_product_attention(k, pooled, pooled), atol=1e-12)


def test_another_scale_of_the_grid_is_taken(build: Any, errors_to_twin: Any) -> None:
    mixer = build(options(1, 3), length=6, grid=(2, 3))
    assert errors_to_twin(mixer, torch.randn(2, 24, 8, dtype=torch.float64))[0] < 1e-11
    with pytest.raises(ValueError, match="no 2 x 3 grid at any scale"):
        mixer(torch.randn(2, 7, 8).double())


def test_bins_of_single_tokens_are_softmax(build: Any) -> None:
    """As many bins as tokens, whatever padding there is around them."""
    ours, softmax = build(options(3), length=9), build({}, length=9)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert torch.allclose(ours(x), softmax(x), atol=1e-12)
    wider = torch.cat([x, 100 * torch.ones(2, 4, 8)], dim=1)
    assert torch.allclose(ours(wider, torch.arange(13).expand(2, -1) < 9)[:, :9], softmax(x), atol=1e-12)


def test_padding_moves_no_bin_of_a_sequence(build: Any) -> None:
    mixer = build(options(1, 2), length=11)
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    real = torch.tensor([True, False, True, True, False, True, True, True, False, True, False]).expand(2, -1)
    assert torch.allclose(mixer(x, real)[real], mixer(x[real].view(2, -1, 8)).flatten(0, 1), atol=1e-12)


def test_the_map_averages_values(build: Any) -> None:
    mixer = build(options(1, 3), length=13, grid=(3, 4), prefix_tokens=1)
    x, real = torch.randn(4, 13, 8, dtype=torch.float64), padding(13)
    weights = mixer.attention_map(x, real)
    assert torch.allclose(weights[:3].sum(-1), torch.ones(()).double())
    assert not weights.masked_select(~real[:, None, None]).any()
    v = mixer._queries_keys_values(x)[2]
    wanted = mixer._merge([weights @ v], v.dtype)
    assert torch.allclose(mixer(x, real)[:3], wanted[:3], atol=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("grid", [None, (3, 3)])
def test_extreme_inputs_stay_finite(build: Any, autocast: bool, grid: tuple[int, int] | None) -> None:
    mixer = build(options(1, 2, 5), length=9, dtype=torch.float32, grid=grid)
    x = torch.randn(4, 9, 8)
    x[0] *= 120 / x[0].abs().max()
    x[1] = x[1, :1]
    real = torch.ones(4, 9, dtype=torch.bool)
    real[2, 1:] = False
    real[3] = False
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = mixer(x, real)
    gradients = torch.autograd.grad(y.float().square().sum(), [x, *mixer.parameters()])
    assert all(t.isfinite().all() for t in (y, *gradients))
    assert not y[3].any()


def test_dropout_is_of_anchors(build: Any) -> None:
    mixer = build(options(1, 3) | {"dropout": 0.5}, length=9)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert not torch.allclose(mixer(x), mixer(x))
    assert torch.equal(mixer.eval()(x), mixer(x))


@pytest.mark.parametrize(
    ("chosen", "spec", "reason"),
    [
        (options(), {}, "must be one or more numbers"),
        (options(0), {}, "at least 1"),
        (options(1), {"causal": True}, "an anchor averages tokens of the future"),
    ],
)
def test_what_cannot_be_built_is_refused(chosen: dict[str, Any], spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(ReattendError, match=reason):
        MultiHeadAttention(MixerSpec(8, 2, 9, **spec), **chosen)
