"""AFT-conv: the Attention Free Transformer whose position biases are filters on a sequence or a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reattend.attention.aft.mixer import MAP_REASON, AFTMixer, QueryActivation, average_of, entropy_note, unseen
from reattend.attention.contract import Capabilities, Losses, MixerSpec, State
from reattend.attention.ops.causal_relative_average import causal_relative_average, causal_relative_average_flops
from reattend.attention.ops.convolution import scaled_grid
from reattend.attention.ops.merged_averages import merge
from reattend.attention.ops.relative_average import relative_average, relative_average_flops
from reattend.attention.ops.relative_bias import relative_bias
from reattend.attention.ops.relative_filters import log_positive, one_hot, reparameterised

Outside = Literal["zero", "minus_infinity"]
Positions = Literal["dense", "one_hot"]

OUTSIDE = {"zero": 0.0, "minus_infinity": -math.inf}
WEIGHT_STD = 0.02


class AFTConv(AFTMixer):
    """AFT-conv-h-s (Zhai et al. 2021, arXiv 2105.14103, Eqn 6, here without its difference, which cancels).

        Y_t = sigmoid(Q_t) * sum_t' exp(K_t' + w_tt') V_t' / sum_t' exp(K_t' + w_tt')
        w_tt' = filter(t' - t) where the filter of s taps along each axis reaches, and 0 elsewhere

    Each of h filters has one channel of keys, and D / h channels of queries and values. Places are those of `spec.grid`
    (1, 2 or 3 extents), or of a sequence; beyond its borders there is nothing. Causal, on a sequence: a filter reaches
    back over s - 1 tokens. Any number of tokens is taken that fits the grid at a scale. Prefix tokens, of which the
    paper's models have none, are at no place: their biases, from and to all tokens, are 0.

    Re-parameterised (Eqn 8), filter = gamma (w - mean(w)) / std(w) + beta for each filter, with the biased std. gamma
    and beta start from 0, where it is AFT-simple; w starts random, since gamma has no gradient where w is constant.

    Args:
        spec: the place it is built for.
        kernel_size: s, odd unless causal.
        num_filters: h; None for the number of heads. With h = D each channel of values has its own key.
        reparameterised: as above; without, filter = w.
        outside: the bias where the filter does not reach; `minus_infinity` is the paper's ablation without global
            connectivity.
        signed: the paper's ablation of non-negative weights: 1 + filter takes the place of exp(filter), so that the
            filter itself is what is convolved with, and may be negative. The paper does not say what the normaliser is
            then; here it sums the weights' absolute values.
        positions: `one_hot` gives each filter a single tap that is not 0, of height gamma. The tap is the largest of w
            plus Gumbel noise in training, with the gradient of their softmax, and the largest of w in evaluation. The
            paper says no more of it than that there is one tap; the rest is our own design.
        temperature: of that softmax.
        entropy_loss: return the sum over filters of the entropy of softmax(filter), in nats, as the loss
            `bias_entropy`; with `one_hot` that of softmax(w).
        query_activation: see `AFTMixer`.
        normalised: see `AFTMixer`.
        output_projection: see `AFTMixer`.
        qkv_bias: see `AFTMixer`.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    any_length: ClassVar[bool] = True

    def __init__(
        self,
        spec: MixerSpec,
        *,
        kernel_size: int = 11,
        num_filters: int | None = None,
        reparameterised: bool = True,
        outside: Outside = "zero",
        signed: bool = False,
        positions: Positions = "dense",
        temperature: float = 1.0,
        entropy_loss: bool = False,
        query_activation: QueryActivation = "sigmoid",
        normalised: bool = True,
        output_projection: bool = True,
        qkv_bias: bool = True,
    ) -> None:
        num_filters = spec.num_heads if num_filters is None else num_filters
        super().__init__(
            spec,
            kernel_size=kernel_size,
            num_filters=num_filters,
            reparameterised=reparameterised,
            outside=outside,
            signed=signed,
            positions=positions,
            temperature=temperature,
            entropy_loss=entropy_loss,
            query_activation=query_activation,
            normalised=normalised,
            output_projection=output_projection,
            qkv_bias=qkv_bias,
            key_dim=num_filters,
        )
        self.outside = OUTSIDE[outside]
        self.signed = signed
        self.positions = positions
        self.temperature = temperature
        self.entropy_loss = entropy_loss
        self.dimensions = 1 if spec.grid is None else len(spec.grid)
        self.weight = nn.Parameter(WEIGHT_STD * torch.randn(num_filters, *[kernel_size] * self.dimensions))
        self.gamma = nn.Parameter(torch.zeros(num_filters)) if reparameterised else None
        has_beta = reparameterised and positions == "dense"
        self.beta = nn.Parameter(torch.zeros(num_filters)) if has_beta else None

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            causal=True,
            decoding=True,
            constant_state=True,
            time_exponent=1.0,
            reasons={
                "context": "the places of a context are not known",
                "attention_map": MAP_REASON,
            }
            | entropy_note(options),
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = super().problems(spec, **options)
        if found:
            return found
        size, num_filters = options.get("kernel_size", 11), options.get("num_filters")
        dimensions = 1 if spec.grid is None else len(spec.grid)
        if size < 1 or (not spec.causal and size % 2 == 0):
            found.append(f"kernel_size={size} must be {'at least 1' if spec.causal else 'odd, to have a centre'}")
        if num_filters is not None and (num_filters < 1 or spec.dim % num_filters):
            found.append(f"num_filters={num_filters} must divide dim={spec.dim}")
        if options.get("temperature", 1.0) <= 0:
            found.append(f"temperature={options['temperature']} must be above 0")
        if dimensions > 3:
            found.append(f"the grid {spec.grid} has {dimensions} extents, and filters are for 1, 2 or 3")
        if spec.causal and dimensions > 1:
            found.append(f"on the grid {spec.grid} it has no causal form; on a sequence it has")
        if spec.causal and spec.prefix_tokens:
            found.append("its causal form takes no prefix tokens, which are at no place of the sequence")
        return found + _without_effect(spec, options)

    def filters(self) -> Tensor:
        """The biases (h, s, ..., s) that filters stand for, those of Eqn 8 or as they are."""
        if self.gamma is None:
            return self.weight
        if self.beta is None:
            return one_hot(self.weight, self.gamma, self.temperature if self.training else None)
        return reparameterised(self.weight, self.gamma, self.beta)

    def _parts(self) -> list[tuple[int, Tensor, float, float]]:
        """Sign, filters, the bias where they do not reach and that of prefix tokens: one, or the two signs apart."""
        filters = self.filters()
        if not self.signed:
            return [(1, filters, self.outside, 0.0)]
        weights = 1 + filters
        positive, negative = log_positive(weights), log_positive(-weights)
        return [(1, positive, self.outside, 0.0), (-1, negative, -math.inf, -math.inf)]

    def average(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for sign, filters, outside, elsewhere in self._parts():
            filters = filters.to(key.dtype)
            if self.spec.causal:
                average, log_sum = causal_relative_average(filters, key, value, outside=outside)
            else:
                grid = self._grid(key.shape[1])
                average, log_sum = relative_average(filters, key, value, grid, outside=outside, elsewhere=elsewhere)
            found.append((sign * average, log_sum))
        return merge(found) if self.signed else found[0]

    def _grid(self, length: int) -> Sequence[int]:
        """Extents for so many tokens, the prefix among them.

        Raises:
            ValueError: if they do not fit the grid at any scale.
        """
        places = length - self.spec.prefix_tokens
        if places < 0:
            raise ValueError(f"{length} tokens are fewer than the {self.spec.prefix_tokens} prefix tokens")
        return (places,) if self.dimensions == 1 or self.spec.grid is None else scaled_grid(self.spec.grid, places)

    def _centre(self) -> list[int]:
        size = self.weight.shape[1]
        return [size - 1 if self.spec.causal else size // 2] * self.dimensions

    def position_bias(self, length: int) -> Tensor:
        """w (h, N, N), -inf where a token does not see another; `signed`, the logarithm of the weight's absolute."""
        grid, centre = self._grid(length), self._centre()
        found = [
            relative_bias(filters, grid, centre, outside, self.spec.prefix_tokens, elsewhere)
            for _, filters, outside, elsewhere in self._parts()
        ]
        bias = found[0] if len(found) == 1 else torch.logaddexp(*found)
        return unseen(bias, self.spec.causal)

    def implied_map(
        self, x: Tensor, padding_mask: Tensor | None = None, channels: Sequence[int] | None = None
    ) -> Tensor:
        weights = super().implied_map(x, padding_mask, channels)
        if not self.signed:
            return weights
        signs = (1 + self.filters()).sign()
        sign = relative_bias(signs, self._grid(x.shape[1]), self._centre(), 1.0, self.spec.prefix_tokens, 1.0)
        wanted = range(self.spec.dim) if channels is None else channels
        return weights * sign[[channel * len(sign) // self.spec.dim for channel in wanted]]

    def losses(self, length: int, batch_size: int) -> Losses:
        if not self.entropy_loss:
            return {}
        filters = self.weight if self.positions == "one_hot" else self.filters()
        log_shares = filters.to(torch.promote_types(filters.dtype, torch.float32)).flatten(1).log_softmax(1)
        return {"bias_entropy": -(log_shares.exp() * log_shares).sum().expand(batch_size)}

    def average_flops(self, length: int) -> int:
        filters = len(self.weight)
        columns, size = self.spec.dim + filters, self.weight.shape[1]
        if self.spec.causal:
            flops = causal_relative_average_flops(length, size, columns)
        else:
            kernel = [size] * self.dimensions
            flops = relative_average_flops(self._grid(length), kernel, self.spec.prefix_tokens, filters, self.spec.dim)
        return flops * (2 if self.signed else 1)

    def initial_state(self, batch_size: int) -> State:
        """The last s - 1 keys and values, and the average and log_sum of all before those."""
        keys, values = self._nothing(batch_size, self.weight.shape[1])
        return {"keys": keys[:, 1:], "values": values[:, 1:], "average": values[:, 0], "log_sum": keys[:, 0]}

    def average_step(self, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        keys, values = torch.cat([state["keys"], key[:, None]], 1), torch.cat([state["values"], value[:, None]], 1)
        all_values = torch.cat([values, state["average"][:, None]], 1)
        found = []
        for sign, filters, outside, _ in self._parts():
            logits = torch.cat([keys + filters.mT, (state["log_sum"] + outside)[:, None]], 1)
            part, part_log_sum = average_of(logits, all_values)
            found.append((sign * part, part_log_sum))
        average, log_sum = merge([(state["average"], state["log_sum"]), (values[:, 0], keys[:, 0])])
        later = {"keys": keys[:, 1:], "values": values[:, 1:], "average": average, "log_sum": log_sum}
        return *(merge(found) if self.signed else found[0]), later

    def no_weight_decay(self) -> set[str]:
        return {name for name in ("gamma", "beta") if getattr(self, name) is not None}


def _without_effect(spec: MixerSpec, options: dict[str, Any]) -> list[str]:
    """Options that nothing would come of, or parameters that would never get a gradient."""
    found = []
    is_one_hot, is_reparameterised = options.get("positions") == "one_hot", options.get("reparameterised", True)
    if is_one_hot and not is_reparameterised:
        found.append("positions=one_hot has a tap of height gamma, which reparameterised=false leaves out")
    if not is_one_hot and options.get("temperature", 1.0) != 1:
        found.append(f"temperature={options['temperature']} is that of positions=one_hot alone")
    if options.get("kernel_size") != 1:
        return found
    if is_reparameterised:
        found.append("kernel_size=1 has one tap, whose weight never gets a gradient unless reparameterised=false")
    if options.get("entropy_loss"):
        found.append("kernel_size=1 has one tap, whose entropy_loss is always 0")
    alone = options.get("outside") == "minus_infinity" and options.get("normalised", True)
    if alone and not spec.prefix_tokens:
        found.append("kernel_size=1 with outside=minus_infinity leaves a token only itself, and biases that cancel")
    return found
