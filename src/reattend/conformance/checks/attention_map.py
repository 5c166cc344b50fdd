"""The attention map is what the values are averaged with."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention import MultiHeadAttention
from reattend.conformance.check import check
from reattend.conformance.compare import not_finite, relative_error
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import Subject

METHOD = "attention_map"


@check(
    "The attention map has its shape, no weight on padding, and none on the future when causal",
    after=("declarations.methods",),
)
def weights(subject: Subject) -> Passed:
    subject.requires(METHOD)
    mixer, x = subject.mixer(), subject.tokens()
    mask = subject.usual_mask(x)
    with subject.reproducible(), torch.no_grad():
        map_ = mixer.attention_map(x, mask)
    batch, length, _ = x.shape
    shape = (batch, subject.spec.num_heads, length)
    if map_.dim() != 4 or map_.shape[:3] != shape:
        raise CheckFailed(
            f"weights of shape {shape} and a last dimension of keys", f"{tuple(map_.shape)}", "its shape", method=METHOD
        )
    wrong = not_finite([("the map", map_)])
    if wrong:
        raise CheckFailed("finite weights", wrong, "queries that see no key have weights of zero", method=METHOD)
    square = map_.shape[3] == length
    forbidden = torch.zeros(1, 1, 1, map_.shape[3], dtype=torch.bool)
    if square and mask is not None:
        forbidden = forbidden | ~mask[:, None, None, :]
    if square and subject.spec.causal:
        forbidden = forbidden | torch.ones(length, length, dtype=torch.bool).triu(1)
    leaked = (map_ * forbidden).abs().max().item()
    if leaked:
        raise CheckFailed("zero weight on padding and on the future", f"{leaked:.2g}", "the mask", method=METHOD)
    return Passed(_sums(map_, mask))


@check(
    "Values averaged with the attention map give the output", after=("attention_map.weights", "declarations.methods")
)
def consistent(subject: Subject) -> Passed:
    subject.requires(METHOD)
    mixer, x = subject.mixer(), subject.tokens()
    mask = subject.usual_mask(x)
    if not isinstance(mixer, MultiHeadAttention):
        raise NotApplicable("what its values are is known of MultiHeadAttention only")
    if any(True for _ in mixer.kernel.parameters()):
        raise NotApplicable("its kernel has parameters, which may act on the values beside the map")
    with subject.reproducible(), torch.no_grad():
        weights_ = mixer.attention_map(x, mask)
        wanted, _ = subject.outputs(mixer, x, mask)
        source = mixer.projection.tokens(x, x, mask, mask)[2]
        bias = None if mixer.qkv.bias is None else mixer.qkv.bias.chunk(3)[2]
        v = torch.nn.functional.linear(source, mixer.qkv.weight.chunk(3)[2], bias)
        values = v.unflatten(-1, (subject.spec.num_heads, -1)).transpose(1, 2)
        y = mixer.proj((weights_ @ values).transpose(1, 2).flatten(2))
        y = x + y if mixer.residual else y
    error = relative_error(_real(y, mask), _real(wanted, mask))
    if not error <= subject.tolerance:
        raise CheckFailed(
            "the output of forward",
            f"a relative difference of {error:.2g}",
            "the same weights as forward",
            method=METHOD,
        )
    return Passed(f"to {error:.1e}", error)


def _sums(map_: Tensor, mask: Tensor | None) -> str:
    sums = map_.sum(-1) if mask is None else map_.sum(-1)[mask[:, None].expand(map_.shape[:3])]
    one = relative_error(sums, torch.ones_like(sums)) < 1e-3
    return ("rows sum to 1" if one else "rows do not all sum to 1") + ("" if (map_ >= 0).all() else ", some below zero")


def _real(y: Tensor, mask: Tensor | None) -> Tensor:
    return y if mask is None else y * mask[..., None]
