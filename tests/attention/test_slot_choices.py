"""Names, options and capabilities of the slots: what fits, and what the message says where it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.contract import Capabilities, intersect
from reattend.errors import ReattendError

SPEC = MixerSpec(dim=12, num_heads=3, max_length=10)
CAUSAL = MixerSpec(dim=12, num_heads=3, max_length=10, causal=True)


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        (SPEC, {"kernel": "sotfmax"}, ["unknown kernel 'sotfmax'", "Did you mean 'softmax'?", ", cosformer, "]),
        (SPEC, {"projection": "lineer"}, ["unknown projection 'lineer'", "Did you mean 'linear'?"]),
        (SPEC, {"kernel": {"fused": True}}, ["'name'"]),
        (SPEC, {"kernel": {"name": "softmax", "fuse": True}}, ["kernel 'softmax'", "'fuse'", "Did you mean 'fused'?"]),
        (SPEC, {"kernel": {"name": "softmax", "fused": "yes"}}, ["'fused'", "true or false", "'yes'"]),
        (SPEC, {"kernel": {"name": "linear", "feature_map": "elu"}}, ["unknown feature map 'elu'", "elu_plus_one"]),
        (SPEC, {"kernel": "no_such_package.module.Kernel"}, ["cannot import 'no_such_package.module.Kernel'"]),
        (SPEC, {"kernel": "reattend.attention.kernels.linear.LinerKernel"}, ["Did you mean 'LinearKernel'?"]),
        (SPEC, {"kernel": "reattend.attention.MixerSpec"}, ["not a subclass of", "Kernel"]),
        (SPEC, {"recenter": {"bta": 1.0}}, ["recenter has no option 'bta'", "Did you mean 'beta'?"]),
        (SPEC, {"recenter": {"beta": "one"}}, ["'beta' of recenter", "a finite number", "'one'"]),
        (SPEC, {"recenter": {"beta": float("nan")}}, ["a finite number"]),
        (SPEC, {"recenter": {"learnable": 1}}, ["'learnable' of recenter", "true or false"]),
        (SPEC, {"scaled_heads": {"pooling": "max"}}, ["'pooling'", "'mean' or 'stride'", "'max'"]),
        (SPEC, {"scaled_heads": {"scales": [1, 2, 2.5]}}, ["'scales'", "a list of a whole number or null"]),
        (SPEC, {"scaled_heads": {"scales": [1, 2]}}, ["2 scales", "3 heads"]),
        (SPEC, {"scaled_heads": {"scales": [1, 1]}}, ["2 scales", "3 heads"]),
        (SPEC, {"scaled_heads": {"scales": [1, 2, 0]}}, ["must be 1", "larger"]),
        (SPEC, {"scaled_heads": {"scales": []}}, ["0 scales", "3 heads"]),
        (SPEC, {"dropout": 1.5}, ["dropout=1.5"]),
        (SPEC, {"dropout": 0.1, "kernel": "linear"}, ["dropout=0.1", "LinearKernel", "set dropout=0"]),
        (SPEC, {"kernl": "linear"}, ["no option 'kernl'", "Did you mean 'kernel'?"]),
        (SPEC, {"residual": "yes"}, ["'residual'", "true or false"]),
        (MixerSpec(dim=10, num_heads=3, max_length=10), {}, ["num_heads=3 does not divide dim=10"]),
        (CAUSAL, {"scaled_heads": {"scales": [1, 1, 2]}}, ["not causal", "a pooled key averages tokens of the future"]),
        (CAUSAL, {"kernel": "linear", "recenter": {}}, ["not causal", "phi(k_j - beta mu_t) depends on t and j"]),
    ],
)
def test_what_cannot_work_is_named(spec: MixerSpec, options: dict[str, Any], says: list[str]) -> None:
    found = MultiHeadAttention.problems(spec, **options)
    assert len(found) == 1
    assert all(words in found[0] for words in says)
    if "kernl" not in options:
        with pytest.raises(ReattendError, match="MultiHeadAttention cannot be built"):
            MultiHeadAttention(spec, **options)


def test_all_mistakes_are_named_at_once() -> None:
    spec = MixerSpec(dim=10, num_heads=3, max_length=10, causal=True)
    found = MultiHeadAttention.problems(spec, scaled_heads={"scales": [2, 2]}, dropout=0.5, kernel="linear")
    assert len(found) == 4
    found = MultiHeadAttention.problems(spec, recenter={"a": 1}, scaled_heads={"b": 2}, kernel="c", projection="d")
    assert len(found) == 4


@pytest.mark.parametrize("spec", [SPEC, CAUSAL])
def test_options_that_do_nothing_do_not_cost_causality(spec: MixerSpec) -> None:
    options = {"scaled_heads": {"scales": [1, 1, 1]}, "recenter": {"beta": 0.0}, "kernel": "linear"}
    assert MultiHeadAttention.problems(spec, **options) == []
    assert MultiHeadAttention(spec, **options).recenter is None


def test_capabilities_are_known_without_building() -> None:
    plain = MultiHeadAttention.capabilities()
    assert plain == Capabilities(causal=True, context=True, decoding=True, attention_map=True)
    linear = MultiHeadAttention.capabilities(kernel={"name": "linear", "feature_map": "elu_plus_one"})
    assert linear == replace(plain, constant_state=True, time_exponent=1.0)
    assert MultiHeadAttention.capabilities(recenter={"beta": 1.0, "learnable": True}, residual=True) == plain
    scaled = MultiHeadAttention.capabilities(scaled_heads={"scales": [1, 2]})
    assert (scaled.causal, scaled.decoding, scaled.context, scaled.attention_map) == (False, False, True, True)
    assert "future" in scaled.reasons["causal"]
    with pytest.raises(ReattendError, match="unknown kernel"):
        MultiHeadAttention.capabilities(kernel="nothing")


def test_capabilities_intersect_with_the_first_reason() -> None:
    grid = Capabilities(causal=True, needs_grid=True)
    both = intersect([("a", grid), ("b", Capabilities(reasons={"causal": "it pools"})), ("c", Capabilities())])
    assert both.needs_grid
    assert not both.causal
    assert both.reasons["causal"] == "b: it pools"


def test_a_kernel_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_kernels.py").write_text(
        "from reattend.attention.contract import Capabilities\n"
        "from reattend.attention.slots import Kernel\n\n\n"
        "class MeanKernel(Kernel):\n"
        "    def __init__(self, spec, *, factor: float = 1.0):\n"
        "        super().__init__(spec)\n"
        "        self.factor = factor\n\n"
        "    @classmethod\n"
        "    def capabilities(cls, **options):\n"
        "        return Capabilities(reasons={'causal': 'a mean sees all'})\n\n"
        "    def forward(self, q, k, v, key_mask=None, **_):\n"
        "        return self.factor * v.mean(2, keepdim=True).expand_as(q)\n\n"
        "    def flops(self, num_queries, num_keys):\n"
        "        return num_keys * self.head_dim\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    mixer = MultiHeadAttention(SPEC, kernel={"name": "my_kernels.MeanKernel", "factor": 2.0})
    x = torch.randn(2, 5, 12)
    expected = mixer.proj(2 * mixer.qkv(x)[..., 24:].mean(1, keepdim=True)).expand_as(x)
    assert torch.allclose(mixer(x), expected, atol=1e-6)
    assert MultiHeadAttention.problems(CAUSAL, kernel="my_kernels.MeanKernel") == ["it is not causal: a mean sees all"]


def test_parameters_and_their_initial_values() -> None:
    mixer = MultiHeadAttention(SPEC, recenter={"beta": 0.3, "learnable": True})
    shapes = {name: tuple(parameter.shape) for name, parameter in mixer.named_parameters()}
    assert shapes == {
        "qkv.weight": (36, 12),
        "qkv.bias": (36,),
        "proj.weight": (12, 12),
        "proj.bias": (12,),
        "recenter.beta": (3,),
    }
    assert mixer.no_weight_decay() == {"recenter.beta"}
    assert torch.equal(mixer.recenter.beta, torch.full((3,), 0.3))
    assert not mixer.qkv.bias.any()
    assert not mixer.proj.bias.any()
    assert mixer.qkv.weight.abs().max() <= (6 / (12 + 36)) ** 0.5
    assert MultiHeadAttention(SPEC, recenter={}).no_weight_decay() == set()
    assert set(MultiHeadAttention(SPEC, bias=False).state_dict()) == {"qkv.weight", "proj.weight"}
