"""The linear kernel: a normalised inner product of feature maps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.lookup import SlotChoice, option_problems, resolve
from reattend.attention.slots import EVERYTHING, FeatureMap, HeadGroup, Kernel
from reattend.errors import ReattendError

FEATURE_MAPS = "reattend.attention.feature_maps"


class LinearKernel(Kernel):
    """h_i = sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j).

    Eqn 27 of the primal-dual paper; with elu(x) + 1 the linear attention of Katharopoulos et al. (2020).

    Time and memory are linear in length, in the causal form too. A query whose normaliser is zero, or so close to the
    smallest float that its terms have lost their digits to underflow, gets zero, with zero gradient. All sums are
    float32 at least, under autocast too.

    Args:
        spec: the place it is built for.
        feature_map: phi, a module of `feature_maps` or the import path of a `FeatureMap`; a mapping of that under
            `name` and its options.
    """

    def __init__(self, spec: MixerSpec, *, feature_map: SlotChoice = "elu_plus_one") -> None:
        super().__init__(spec)
        feature_map_class, options = resolve(FEATURE_MAPS, FeatureMap, feature_map)  # type: ignore[type-abstract]
        self.feature_map = feature_map_class(spec, **options)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return EVERYTHING

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        choice: SlotChoice = options.get("feature_map", "elu_plus_one")
        try:
            found, map_options = resolve(FEATURE_MAPS, FeatureMap, choice)  # type: ignore[type-abstract]
        except ReattendError as error:
            return [str(error)]
        return option_problems(f"feature map '{found.__name__}'", found, map_options)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        dropout: float = 0.0,
        group: HeadGroup | None = None,
    ) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            query, key = self._features(q, k, key_mask)
            value = v.to(query.dtype)
            out = _causal(query, key, value) if self.causal else _read(query, key.mT @ value, key.sum(-2))
        return out.to(v.dtype)

    def _features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
        query, key = self.feature_map.scaled(q.to(wide))[0], self.feature_map(k.to(wide))
        if key_mask is not None:
            key = key.masked_fill(~key_mask[:, None, :, None], 0.0)
        return query, key

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            query, key = self._features(q, k, key_mask)
            similarity = query @ key.mT
            similarity = similarity.tril() if self.causal else similarity
            return _divide(similarity, similarity.sum(-1, keepdim=True))

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Sums over the keys, then numerator and normaliser of each query; the causal form as its recurrence."""
        features = self.feature_map.num_features(self.head_dim)
        return 2 * features * (num_keys * self.head_dim + num_queries * (self.head_dim + 1)) + features * num_keys

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        features = self.feature_map.num_features(self.head_dim)
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch_size, self.num_heads, features)
        return {
            "key_values": torch.zeros(*shape, self.head_dim, device=device, dtype=wide),
            "key_sum": torch.zeros(*shape, device=device, dtype=wide),
        }

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        with torch.autocast(q.device.type, enabled=False):
            query, key = self._features(q, k, None)
            key_values = state["key_values"] + key.mT * v.to(key.dtype)
            key_sum = state["key_sum"] + key.squeeze(-2)
            out = _read(query, key_values, key_sum)
        return out.to(v.dtype), {"key_values": key_values, "key_sum": key_sum}


def _read(query: Tensor, key_values: Tensor, key_sum: Tensor) -> Tensor:
    """phi(q) S / (phi(q) . z) with S (..., F, D) and z (..., F), each query on its own."""
    return _divide(query @ key_values, query @ key_sum.unsqueeze(-1))


def _divide(numerator: Tensor, normaliser: Tensor) -> Tensor:
    # Below this the terms that a float keeps beside the sum are no longer normal floats, and 1/normaliser overflows.
    limits = torch.finfo(normaliser.dtype)
    zero = normaliser.abs() <= limits.tiny / limits.eps
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, normaliser))


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Prefix sums between chunks, masked products within: O(N C (F + D) + N F D / C) memory with chunks of C."""
    length, features = query.shape[-2:]
    # With C >= F the chunks' states (N/C, F, D) are no larger than the values.
    chunk = min(max(64, features), length)
    num_chunks = -(-length // chunk)
    short = num_chunks * chunk - length
    query, key, value = (F.pad(x, (0, 0, 0, short)).unflatten(-2, (num_chunks, chunk)) for x in (query, key, value))
    key_values = _before(key.mT @ value)
    key_sum = _before(key.sum(-2))
    similarity = (query @ key.mT).tril()
    numerator = query @ key_values + similarity @ value
    normaliser = query @ key_sum.unsqueeze(-1) + similarity.sum(-1, keepdim=True)
    return _divide(numerator, normaliser).flatten(-3, -2)[..., :length, :]


def _before(chunks: Tensor) -> Tensor:
    """Sum of all earlier chunks; `chunks` has them in dimension 2, after batch and heads."""
    sums = chunks.cumsum(2)
    return torch.cat([torch.zeros_like(sums[:, :, :1]), sums[:, :, :-1]], dim=2)
