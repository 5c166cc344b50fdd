"""Factories of mixers, the same in all layers or not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from reattend.attention import LayeredMixerFactory, MixerFactory, MixerSpec, MultiHeadAttention
from reattend.attention.contract import split_losses
from reattend.attention.kernels.linear import LinearKernel
from reattend.attention.kernels.softmax import SoftmaxKernel
from reattend.errors import ReattendError

SPEC = MixerSpec(dim=8, num_heads=2, max_length=10, num_layers=3)
SOFTMAX = MixerFactory(MultiHeadAttention)
LINEAR = MixerFactory(MultiHeadAttention, {"kernel": "linear"})
SCALED = MixerFactory(MultiHeadAttention, {"scaled_heads": {"scales": [1, 2]}})


def kernels(factory: LayeredMixerFactory, spec: MixerSpec) -> list[type]:
    return [type(factory(replace(spec, layer=layer)).kernel) for layer in range(spec.num_layers)]


def test_a_factory_builds_what_it_says() -> None:
    assert isinstance(LINEAR(SPEC).kernel, LinearKernel)
    assert LINEAR.capabilities == MultiHeadAttention.capabilities(kernel="linear")
    assert LINEAR.problems(SPEC) == []


def test_a_factory_refuses_what_does_not_fit() -> None:
    factory = MixerFactory(MultiHeadAttention, {"kernl": "linear"})
    assert "Did you mean 'kernel'?" in factory.problems(SPEC)[0]
    with pytest.raises(ReattendError, match=r"MultiHeadAttention cannot be built: .*'kernl'"):
        factory(SPEC)
    with pytest.raises(ReattendError, match="does not divide"):
        SOFTMAX(replace(SPEC, dim=9))


def test_layers_by_index_from_either_end() -> None:
    factory = LayeredMixerFactory(SOFTMAX, {0: LINEAR, -1: LINEAR})
    assert kernels(factory, SPEC) == [LinearKernel, SoftmaxKernel, LinearKernel]
    assert kernels(LayeredMixerFactory(SOFTMAX, {}), SPEC) == 3 * [SoftmaxKernel]


def test_layers_intersect_their_capabilities() -> None:
    capabilities = LayeredMixerFactory(SOFTMAX, {-1: SCALED}).capabilities
    assert not capabilities.causal
    assert capabilities.reasons["causal"] == "layer -1: a pooled key averages tokens of the future"
    mixed = LayeredMixerFactory(SOFTMAX, {1: LINEAR}).capabilities
    assert (mixed.decoding, mixed.constant_state, mixed.time_exponent) == (True, False, 2.0)


def test_an_index_out_of_range_names_the_number_of_layers() -> None:
    factory = LayeredMixerFactory(SOFTMAX, {3: LINEAR, -4: LINEAR})
    found = factory.problems(SPEC)
    assert len(found) == 2
    assert "layer 3 does not exist" in found[0]
    assert "3 layers" in found[0]
    with pytest.raises(ReattendError, match="layer -4 does not exist"):
        factory(SPEC)


def test_two_indices_of_one_layer_are_refused() -> None:
    assert "mean the same" in LayeredMixerFactory(SOFTMAX, {2: LINEAR, -1: SCALED}).problems(SPEC)[0]


def test_a_problem_is_found_from_any_layer_and_once() -> None:
    wrong = MixerFactory(MultiHeadAttention, {"scaled_heads": {"scales": [1, 2, 4]}})
    found = LayeredMixerFactory(wrong, {-1: wrong}).problems(replace(SPEC, layer=1))
    assert [problem.split(":")[0] for problem in found] == ["other layers", "layer 2"]
    assert LayeredMixerFactory(wrong, {0: SOFTMAX}).problems(replace(SPEC, num_layers=1)) == []


def test_attention_stands_alone() -> None:
    code = (
        "import sys; from reattend.attention import MultiHeadAttention; "
        "sys.exit(bool({'hydra', 'omegaconf', 'pytorch_lightning', 'lightning', 'timm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_losses_are_split_from_the_output() -> None:
    y = torch.ones(2, 3, 4)
    assert split_losses(y) == (y, {})
    losses = {"rank": torch.ones(2)}
    assert split_losses((y, losses)) == (y, losses)
