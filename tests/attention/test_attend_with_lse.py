"""Attention with its log-sum-exp, and unions of such attentions, against dense softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reattend.attention.ops import attend_with_lse as module
from reattend.attention.ops.attend_with_lse import attend_with_lse, merge
from reattend.attention.ops.blocks import attend_blocks, attend_near

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor]]


def inputs(queries: int = 5, keys: int = 7, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 4, dtype=dtype, requires_grad=True) for n in (queries, keys, keys)]


def dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> tuple[Tensor, Tensor]:
    logits = q.double() @ k.double().mT / math.sqrt(q.shape[-1])
    if causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    blind = (logits == -math.inf).all(-1, keepdim=True)
    logits = logits.masked_fill(blind, 0.0)
    lse = logits.logsumexp(-1).masked_fill(blind.squeeze(-1), -math.inf)
    return (logits.softmax(-1) @ v.double()).masked_fill(blind, 0.0), lse


def written_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    return module._written_out(q, k, v, mask, None if mask is None else module._blind(mask, causal), causal)


def same(got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], leaves: list[Tensor], tolerance: float) -> None:
    """Both outputs, and gradients through the first, through the second and through both."""
    sees = wanted[1] > -math.inf
    assert torch.equal(got[1] > -math.inf, sees)
    assert (got[0].double() - wanted[0]).abs().max() < tolerance
    assert (got[1][sees] - wanted[1][sees]).abs().max() < tolerance
    cotangents = torch.randn_like(wanted[0]), torch.randn_like(wanted[1])
    for of_out, of_lse in ((1, 0), (0, 1), (1, 1)):
        pair = [
            torch.autograd.grad(
                of_out * (out * cotangents[0]).sum() + of_lse * (lse.masked_fill(~sees, 0.0) * cotangents[1]).sum(),
                leaves,
                retain_graph=True,
            )
            for out, lse in (got, wanted)
        ]
        for one, other in zip(*pair, strict=True):
            assert (one.double() - other.double()).abs().max() < 2 * tolerance


MASKS = {
    "none": None,
    "bool": torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.3,
    "keys": torch.tensor([False, True, False, True, True, False, True]).view(1, 1, 1, 7),
    "added": torch.linspace(-2, 1, 49, dtype=torch.float64).view(1, 1, 7, 7),
    "nothing": torch.zeros(2, 1, 1, 7, dtype=torch.bool),
}


@pytest.mark.parametrize("attend", [attend_with_lse, written_out])
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_gradients_are_those_of_dense_softmax(attend: Attend, mask: str, causal: bool) -> None:
    leaves = inputs(7, 7)
    got, wanted = attend(*leaves, MASKS[mask], causal), dense(*leaves, MASKS[mask], causal)
    if mask == "nothing":
        assert not got[0].any()
        assert (got[1] == -math.inf).all()
    else:
        same(got, wanted, leaves, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-2)])
def test_narrow_types_have_a_wide_log_sum_exp(dtype: torch.dtype, tolerance: float) -> None:
    leaves = inputs(7, 7, dtype)
    out, lse = attend_with_lse(*leaves, MASKS["bool"])
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    same((out, lse), dense(*leaves, MASKS["bool"]), leaves, tolerance)


def test_the_gradient_of_the_log_sum_exp_does_not_ask_for_one_of_the_output() -> None:
    # The fused backward pass gets it by way of the output's gradient, whose rows may be zero or tiny.
    leaves = inputs()
    out, lse = attend_with_lse(*leaves)
    out_dense, lse_dense = dense(*leaves)
    for size in (0.0, 1e-160, 1e-20):
        got = torch.autograd.grad((size * out).sum() + lse.sin().sum(), leaves, retain_graph=True)
        wanted = torch.autograd.grad((size * out_dense).sum() + lse_dense.sin().sum(), leaves, retain_graph=True)
        for one, other in zip(got, wanted, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("queries_without_keys", [False, True])
def test_the_merge_of_sets_of_keys_is_softmax_over_their_union(queries_without_keys: bool) -> None:
    leaves = inputs()
    q, k, v = leaves
    masks = [torch.rand(2, 1, 5, n) < 0.5 for n in (2, 0, 4, 1)]
    if queries_without_keys:
        for mask in masks:
            mask[:, :, 2] = False
    parts, start = [], 0
    for mask in masks:
        keys = slice(start, start + mask.shape[-1])
        parts.append(attend_with_lse(q, k[:, :, keys], v[:, :, keys], mask))
        start += mask.shape[-1]
    same(merge(*zip(*parts, strict=True)), dense(q, k, v, torch.cat(masks, dim=-1)), leaves, 1e-12)


def test_gradcheck() -> None:
    q, k, v = (x[:1, :1, :3].detach().requires_grad_() for x in inputs())
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])[None, None]

    def union(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = [attend_with_lse(q, k, v, mask), attend_with_lse(q, k[:, :, :2], v[:, :, :2], causal=False)]
        out, lse = merge(*zip(*parts, strict=True))
        return torch.cat([out, lse.unsqueeze(-1).tanh()], dim=-1)

    assert torch.autograd.gradcheck(union, (q, k, v))


@pytest.mark.parametrize("mask_shape", [None, (1, 4, 3, 5), (1, 1, 1, 5), (2, 1, 1, 5), (2, 4, 1, 5), (2, 4, 3, 5)])
def test_blocks_are_attended_one_by_one(mask_shape: tuple[int, ...] | None) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(2, 3, 4, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5)]
    mask = None if mask_shape is None else torch.rand(mask_shape) < 0.6
    whole = None if mask is None else mask.expand(2, 4, 3, 5).unsqueeze(1)
    wanted = [
        dense(*(x[:, :, g] for x in leaves), None if whole is None else whole[:, :, g])  # type: ignore[arg-type]
        for g in range(4)
    ]
    wanted_out, wanted_lse = (torch.stack(x, dim=2) for x in zip(*wanted, strict=True))
    same(attend_blocks(*leaves, mask), (wanted_out, wanted_lse), leaves, 1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 4, 7, 13])
@pytest.mark.parametrize(("before", "after", "block"), [(0, 0, 1), (3, 0, 2), (2, 5, 4), (1, 1, 20)])
@pytest.mark.parametrize("padded", [False, True])
def test_near_keys_are_those_of_a_dense_band(length: int, before: int, after: int, block: int, padded: bool) -> None:
    leaves = inputs(length, length)
    real = torch.rand(2, length) < 0.6 if padded else None
    i = torch.arange(length)
    band = (i[:, None] - i <= before) & (i - i[:, None] <= after)
    band = band[None, None] if real is None else band & real[:, None, None]

    def visible(i: Tensor, j: Tensor, real: Tensor) -> Tensor:
        return ((i - j <= before) & (j - i <= after) & real).squeeze(-1)

    got = attend_near(*leaves, visible, block=block, before=before, after=after, real=real)
    if band.any():
        same(got, dense(*leaves, band), leaves, 1e-12)
    else:
        assert not got[0].any()


def test_no_gradient_is_nan_where_a_key_is_far_larger_than_the_others() -> None:
    q, k, v = (120 * x.detach().float() for x in inputs(7, 7))
    for causal in (False, True):
        leaves = [x.requires_grad_() for x in (q, k, v)]
        parts = [attend_with_lse(*leaves, MASKS["keys"], causal), attend_with_lse(*leaves, ~MASKS["keys"], causal)]
        out, lse = merge(*zip(*parts, strict=True))
        gradients = torch.autograd.grad(out.sum() + lse.sum(), leaves)
        assert all(x.isfinite().all() for x in (out, lse, *gradients))
