"""The linear kernel: an inner product of feature maps, normalised or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.lookup import SlotChoice, option_problems, resolve
from reattend.attention.ops.linear_attention import CausalForm, initial_state, linear_attention, linear_step
from reattend.attention.ops.precision import without_autocast
from reattend.attention.slots import EVERYTHING, FeatureMap, HeadGroup, Kernel
from reattend.errors import ReattendError

FEATURE_MAPS = "reattend.attention.feature_maps"
NO_MAP = "without a normaliser the weights of a query do not sum to one"


class LinearKernel(Kernel):
    """h_i = sum_j phi_q(q_i) . phi_k(k_j) v_j / sum_j phi_q(q_i) . phi_k(k_j).

    Eqn 27 of the primal-dual paper; with elu(x) + 1 the linear attention of Katharopoulos et al. (2020). Without the
    normaliser h_i = sum_j phi_q(q_i) . phi_k(k_j) v_j / M^p, where M counts the real keys that the query sees.

    Time and memory are linear in length, in the causal form too. A query whose normaliser is zero, or so close to the
    smallest float that its terms have lost their digits to underflow, gets zero, with zero gradient. All sums are
    float32 at least, under autocast too.

    Args:
        spec: the place it is built for.
        feature_map: phi_k, a module of `feature_maps` or the import path of a `FeatureMap`; a mapping of that under
            `name` and its options.
        query_feature_map: phi_q, likewise; None for the very same map, with what it has learnt or drawn.
        normalised: whether there is a denominator.
        length_power: p, where not normalised. 0 is Q K^T V as it is written, which grows with M; 1/2 is the "linear"
            attention of mlpen/Nystromformer, whose feature map is elu(x) + 1 and whose M counts padding too.
        causal_form: how the causal sums are formed: `chunked`, `cumsum` or `recurrent`, as in
            `ops.linear_attention`. Same result; the first is the fastest.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        feature_map: SlotChoice = "elu_plus_one",
        query_feature_map: SlotChoice | None = None,
        normalised: bool = True,
        length_power: float = 0.0,
        causal_form: CausalForm = "chunked",
    ) -> None:
        super().__init__(spec)
        self.feature_map = _built(spec, feature_map)
        self.query_feature_map = None if query_feature_map is None else _built(spec, query_feature_map)
        self.normalised = normalised
        self.length_power = length_power
        self.causal_form = causal_form

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        if options.get("normalised", True):
            return EVERYTHING
        return replace(EVERYTHING, attention_map=False, reasons={"attention_map": NO_MAP})

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        choices = [options.get("feature_map", "elu_plus_one"), options.get("query_feature_map")]
        found = [problem for choice in choices if choice is not None for problem in _map_problems(spec, choice)]
        if options.get("length_power") and options.get("normalised", True):
            found.append("length_power has no effect with a normaliser: set normalised=false, or length_power=0")
        if not found and choices[1] is not None:
            maps = [resolve(FEATURE_MAPS, FeatureMap, choice)[0] for choice in choices]  # type: ignore[type-abstract]
            drawn = next((found.__name__ for found in maps if found.random), None)
            if drawn:
                return [f"{drawn} draws at random: leave query_feature_map out: both sides must share the matrix"]
        if not found and choices[1] is not None and spec.dim % spec.num_heads == 0:
            head_dim = spec.dim // spec.num_heads
            lengths = [_built(spec, choice).num_features(head_dim) for choice in choices]
            if lengths[0] != lengths[1]:
                found.append(
                    f"feature_map has {lengths[0]} features and query_feature_map {lengths[1]}: "
                    f"their inner product needs as many"
                )
        return found

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
        with without_autocast(q):
            query, key, key_log_scale = self._features(q, k, key_mask)
            out = linear_attention(
                query,
                key,
                v,
                causal=self.causal,
                normalised=self.normalised,
                form=self.causal_form,
                key_log_scale=key_log_scale,
            )
            if self.length_power:
                out = out / self._num_keys(key, key_mask) ** self.length_power
        return out.to(v.dtype)

    def _features(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """phi_q(q), phi_k(k) and the latter's log scale, as `linear_attention` takes them."""
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
        # One copy each, and all that follows passes over memory in order.
        q, k = q.to(wide).contiguous(), k.to(wide).contiguous()
        query = self._query_map.scaled(q)[0] if self.normalised else self._query_map(q)
        key, key_log_scale = self.feature_map.scaled(k) if self.feature_map.scales_keys else (self.feature_map(k), None)
        if key_mask is not None:
            padding = ~key_mask[:, None, :, None]
            key = key.masked_fill(padding, 0.0)
            if key_log_scale is not None:
                key_log_scale = key_log_scale.masked_fill(padding, -torch.inf)
        return query, key, key_log_scale

    @property
    def _query_map(self) -> FeatureMap:
        return self.feature_map if self.query_feature_map is None else self.query_feature_map

    def _num_keys(self, key: Tensor, key_mask: Tensor | None) -> Tensor:
        """Number of real keys that a query sees, at least 1: (B or 1, 1, N or 1, 1)."""
        real = torch.ones_like(key[:1, 0, :, 0]) if key_mask is None else key_mask.to(key.dtype)
        counts = real.cumsum(1) if self.causal else real.sum(1, keepdim=True)
        return counts.clamp(min=1)[:, None, :, None]

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        if not self.normalised:
            raise NotImplementedError(f"{type(self).__name__} has no attention map: {NO_MAP}")
        with without_autocast(q):
            query, key, key_log_scale = self._features(q, k, key_mask)
            each = torch.eye(key.shape[-2], device=key.device, dtype=key.dtype).expand(*key.shape[:-1], -1)
            return linear_attention(query, key, each, causal=self.causal, key_log_scale=key_log_scale)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Sums over the keys, then numerator and normaliser of each query; the causal form as its recurrence."""
        features = self.feature_map.num_features(self.head_dim)
        products = 2 * features * self.head_dim * (num_keys + num_queries)
        products += self._query_map.flops(num_queries, self.head_dim) + self.feature_map.flops(num_keys, self.head_dim)
        return products + (features * (2 * num_queries + num_keys) if self.normalised else 0)

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        state = initial_state(
            batch_size,
            self.num_heads,
            self.feature_map.num_features(self.head_dim),
            self.head_dim,
            device,
            dtype,
            normalised=self.normalised,
            log_scaled=self.feature_map.scales_keys,
        )
        if self.length_power:
            state["num_keys"] = torch.zeros(batch_size, 1, 1, 1, device=device)
        return state

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        with without_autocast(q):
            query, key, key_log_scale = self._features(q, k)
            out, after = linear_step(query, key, v, state, normalised=self.normalised, key_log_scale=key_log_scale)
            if self.length_power:
                after["num_keys"] = state["num_keys"] + 1
                out = out / after["num_keys"].to(out.dtype) ** self.length_power
        return out.to(v.dtype), after


def _built(spec: MixerSpec, choice: SlotChoice) -> FeatureMap:
    found, options = resolve(FEATURE_MAPS, FeatureMap, choice)  # type: ignore[type-abstract]
    return found(spec, **options)


def _map_problems(spec: MixerSpec, choice: SlotChoice) -> list[str]:
    try:
        found, options = resolve(FEATURE_MAPS, FeatureMap, choice)  # type: ignore[type-abstract]
    except ReattendError as error:
        return [str(error)]
    wrong = option_problems(f"feature map '{found.__name__}'", found, options)
    return wrong or found.problems(spec, **options)
