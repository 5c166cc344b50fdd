"""Token normalisation against torch's own layers."""

from __future__ import annotations

import torch
from torch import nn

from reattend.backbones.norm import TokenBatchNorm


def masked_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] + [False] * 4])
    return torch.randn(3, 5, 4) * 3 + 1, mask


def test_over_all_is_batch_norm_over_batch_and_time() -> None:
    x, mask = masked_tokens()
    ours, theirs = TokenBatchNorm(4, "all"), nn.BatchNorm1d(4)
    torch.testing.assert_close(ours(x, mask), theirs(x.transpose(1, 2)).transpose(1, 2))
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_over_real_has_zero_mean_and_unit_variance_on_real_tokens_alone() -> None:
    x, mask = masked_tokens()
    y = TokenBatchNorm(4, "real")(x, mask)
    torch.testing.assert_close(y[mask].mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(y[mask].var(0, unbiased=False), torch.ones(4), atol=1e-4, rtol=0)
    assert not y[~mask].any()


def test_over_real_is_blind_to_padding_in_training_and_evaluation() -> None:
    x, mask = masked_tokens()
    other = torch.where(mask[..., None], x, torch.full_like(x, 1e3))
    first, second = TokenBatchNorm(4, "real"), TokenBatchNorm(4, "real")
    assert torch.equal(first(x, mask)[mask], second(other, mask)[mask])
    assert torch.equal(first.running_mean, second.running_mean)  # type: ignore[arg-type]
    assert torch.equal(first.eval()(x, mask)[mask], second.eval()(other, mask)[mask])


def test_over_all_does_see_padding() -> None:
    x, mask = masked_tokens()
    other = torch.where(mask[..., None], x, torch.full_like(x, 1e3))
    assert not torch.allclose(TokenBatchNorm(4, "all")(x, mask)[mask], TokenBatchNorm(4, "all")(other, mask)[mask])
