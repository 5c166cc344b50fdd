"""Recentring of queries and keys by the mean of the keys: Attention-BN."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reattend.attention.contract import MixerSpec, State
from reattend.attention.scaled_heads import take


class Recenter(nn.Module):
    """Attention-BN (primal-dual paper, Eqn 26; with `std` Eqn 22).

    With mu and sigma the mean and the population standard deviation of a head's real keys, per feature,

        q_i <- (q_i - beta mu) / sigma,  k_j <- (k_j - beta mu) / sigma      (sigma only with `std`).

    A kernel that is shift-invariant in the keys gets the equal pair ((q_i - beta mu) / sigma^2, k_j - mu), which keeps
    the digits of keys with a large mean. In the causal form mu_t and sigma_t of the keys up to t enter the query alone:
    ((q_t - beta mu_t) / sigma_t^2, k_j). A feature that is constant over the keys adds the same to every key, so its
    1 / sigma is zero; constant is sigma^2 <= (4 u)^2 mean(k^2), with u the unit roundoff of the keys' type, or a
    sigma^2 so close to the smallest float that squares lose their digits.

    Args:
        spec: the place it is built for.
        beta: weight of the mean; 0 with neither `learnable` nor `std` is attention without recentring.
        learnable: beta is a parameter, one per head, that starts at `beta`.
        std: divides by the standard deviation too.
    """

    def __init__(self, spec: MixerSpec, *, beta: float = 1.0, learnable: bool = False, std: bool = False) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.full((spec.num_heads,), float(beta))) if learnable else float(beta)
        self.causal = spec.causal
        self.std = std

    def forward(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, heads: tuple[int, ...], shift_invariant: bool
    ) -> tuple[Tensor, Tensor]:
        """Recentres.

        Args:
            q: (B, H, N, D), float32 or float64.
            k: (B, H, M, D).
            key_mask: (B, M), True at real keys.
            heads: the H heads among those of the layer.
            shift_invariant: whether the kernel does not see a vector that is added to all keys.

        Returns:
            Queries and keys of the same shapes.
        """
        real = None if key_mask is None else key_mask[:, None, :, None].to(k.dtype)
        if self.causal:
            mean, variance = _prefix_moments(k, real, self.std)
            return self._shift_queries(q, mean, variance, heads), k
        mean = _mean(k, real)
        centred = k - mean if shift_invariant or self.std else None
        variance = None
        if self.std and centred is not None:
            # The second term removes the rounding error of the mean, which a constant feature would be left with.
            variance = _mean(centred.square(), real) - _mean(centred, real).square()
        if shift_invariant and centred is not None:
            return self._shift_queries(q, mean, variance, heads), centred
        q, k = self._minus_mean(q, mean, heads), self._minus_mean(k, mean, heads)
        if variance is None:
            return q, k
        constant = _is_constant(variance, mean, k.dtype)
        inverse = torch.where(constant, 0.0, torch.where(constant, 1.0, variance.double()).rsqrt()).to(k.dtype)
        return q * inverse, k * inverse

    def _shift_queries(self, q: Tensor, mean: Tensor, variance: Tensor | None, heads: tuple[int, ...]) -> Tensor:
        q = self._minus_mean(q, mean, heads)
        if variance is None:
            return q
        constant = _is_constant(variance, mean, q.dtype)
        # In float64: the gradient goes through 1 / sigma^4.
        return q * torch.where(constant, 0.0, 1.0 / torch.where(constant, 1.0, variance.double())).to(q.dtype)

    def _minus_mean(self, x: Tensor, mean: Tensor, heads: tuple[int, ...]) -> Tensor:
        if isinstance(self.beta, float):
            return x.sub(mean, alpha=self.beta)
        return x - take(self.beta, heads, 0).to(mean.dtype)[:, None, None] * mean

    def initial_state(self, batch_size: int, num_heads: int, head_dim: int, device: torch.device) -> State:
        """Count, mean and summed squared deviations of no keys yet."""
        empty = torch.zeros(batch_size, num_heads, 1, head_dim, device=device, dtype=torch.float64)
        state = {"key_count": empty[:, :1, :, :1], "key_mean": empty}
        return state | {"key_deviations": empty} if self.std else state

    def step(self, q: Tensor, k: Tensor, state: State) -> tuple[Tensor, State]:
        """The next query (B, H, 1, D), shifted by the mean of all keys up to its own, and the state after it."""
        count = state["key_count"] + 1
        from_old_mean = k - state["key_mean"]
        mean = state["key_mean"] + from_old_mean / count
        after = {"key_count": count, "key_mean": mean}
        variance = None
        if self.std:
            after["key_deviations"] = state["key_deviations"] + from_old_mean * (k - mean)
            variance = after["key_deviations"] / count
        return self._shift_queries(q, mean.to(k.dtype), variance, tuple(range(q.shape[1]))), after


def _mean(x: Tensor, real: Tensor | None) -> Tensor:
    if real is None:
        return x.mean(2, keepdim=True)
    return (x * real).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp(min=1)


def _prefix_moments(k: Tensor, real: Tensor | None, std: bool) -> tuple[Tensor, Tensor | None]:
    """Mean and variance of the real keys up to each position, (B, H, N, D), by Welford's update in float64."""
    keys = k.double()
    weight = torch.ones_like(keys[:, :1, :, :1]) if real is None else real.double()
    count = weight.cumsum(2).clamp(min=1)
    # Counted from the first real key, a constant feature's mean has no rounding error that looks like a spread.
    first = keys.detach().take_along_dim(weight.argmax(2, keepdim=True), 2)
    keys = keys - first
    mean = (keys * weight).cumsum(2) / count
    if not std:
        return (first + mean).to(k.dtype), None
    mean_before = torch.cat([torch.zeros_like(mean[:, :, :1]), mean[:, :, :-1]], dim=2)
    deviations = ((keys - mean_before).square() * (weight * (count - 1) / count)).cumsum(2)
    return (first + mean).to(k.dtype), deviations / count


def _is_constant(variance: Tensor, mean: Tensor, dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    unit_roundoff = limits.eps / 2
    threshold = (4 * unit_roundoff) ** 2 * (variance + mean.square())
    return variance <= threshold.clamp(min=limits.tiny / limits.eps)
