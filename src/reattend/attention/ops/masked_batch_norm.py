"""Batch normalisation over real tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MaskedBatchNorm(nn.BatchNorm1d):
    """(x - E[x]) / sqrt(Var[x] + eps) * weight + bias for each feature, over the real tokens of all samples.

    In training these are the statistics of the batch, which go into the running ones; in evaluation the running
    statistics are used, and samples do not depend on each other. Under several processes each has its own. A batch of
    one real token is normalised to the bias.
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalises `x` (B, N, C); `real` (B, N) is True at real tokens, whose statistics serve for all."""
        if not self.training or (real is None and x.shape[0] * x.shape[1] > 1):
            normalised: Tensor = super().forward(x.flatten(0, 1))
            return normalised.view(x.shape)
        if real is None:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        padding, count = ~real[..., None], real.sum().to(wide.dtype)
        mean = wide.masked_fill(padding, 0.0).sum((0, 1)) / count.clamp(min=1)
        centred = wide - mean
        variance = centred.masked_fill(padding, 0.0).square().sum((0, 1)) / count.clamp(min=1)
        self._update(mean.detach(), variance.detach(), count)
        return (centred * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)

    def _update(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Moves the running statistics as torch does, the variance without bias; a batch of padding alone does not."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        share = self.momentum * (count > 0)
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.add_(share * (mean - self.running_mean))
            self.running_var.add_(share * (variance * count / (count - 1).clamp(min=1) - self.running_var))
