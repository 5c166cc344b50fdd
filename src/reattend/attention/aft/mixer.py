"""What all Attention Free Transformers share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reattend.attention.contract import Losses, Mixer, MixerSpec, State, check_decodes, check_mask
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.tile_average import spread

QueryActivation = Literal["sigmoid", "tanh", "relu", "softplus", "identity", "none"]

# Without the normaliser a sum can exceed every float: its logarithm is cut off here. The largest float16 is exp(11), of
# which values and the projection need a part.
LARGEST_LOG_SUM = 30.0
LARGEST_LOG_SUM_OF_HALF = 6.0

# Up to this width three products for query, key and value, whose results each lie in one piece, beat one product and
# its strided parts. AFT-simple, forward and backward on one thread, three over one: about 0.9 in time and 0.86 in
# memory at width 64 and 4,096 tokens; 1.01 to 1.05 in time at widths 192 and 384.
NARROW = 128

MAP_REASON = "every channel has a map of its own, which `implied_map` gives for the channels asked for"


def entropy_note(options: Mapping[str, Any]) -> dict[str, str]:
    """The note in capabilities that a loss comes with the output, where the entropy of biases is asked for."""
    return {"losses": "entropy_loss=true"} if options.get("entropy_loss") else {}


class AFTMixer(Mixer):
    """A gate times an average of values with weights exp(key + position bias), channel by channel.

        Y_t = gate(Q_t) * sum_t' exp(K_t' + w_tt') * V_t' / sum_t' exp(K_t' + w_tt')

    (Zhai et al. 2021, arXiv 2105.14103, Eqn 2.) A subclass has the position biases w, and computes the average. The
    number of heads of the spec plays no part unless a subclass says so. Sums and losses are float32 at least, also
    under autocast. Query, key and value are one linear layer whose matrix, with as many rows as they have channels
    together, starts Xavier-uniform as a whole: up to sqrt(6 / (D + rows)). The paper does not say how it starts.

    Args:
        spec: the place it is built for.
        query_activation: the gate; `none` has no query at all.
        normalised: divide by the sum of the weights. Without, Y_t is gate(Q_t) times the sum itself, whose weights
            saturate together when the logarithm of their sum passes 30, or 6 where outputs are float16.
        output_projection: a last linear layer D to D, as the paper's ImageNet models have, and its autoregressive ones
            by their parameter counts have not.
        qkv_bias: whether the linear layers have biases.
        key_dim: channels of the key, each shared by D / key_dim channels of the value in turn; None for D.
        own_options: those of a subclass, for its `problems`.

    Raises:
        ReattendError: if `problems` finds any; names them all.

    Attributes:
        any_length: takes more tokens than `spec.max_length`.
    """

    any_length: ClassVar[bool] = False

    def __init__(
        self,
        spec: MixerSpec,
        *,
        query_activation: QueryActivation = "sigmoid",
        normalised: bool = True,
        output_projection: bool = True,
        qkv_bias: bool = True,
        key_dim: int | None = None,
        **own_options: Any,
    ) -> None:
        self.refuse_problems(
            spec,
            query_activation=query_activation,
            normalised=normalised,
            output_projection=output_projection,
            qkv_bias=qkv_bias,
            **own_options,
        )
        super().__init__()
        self.spec = spec
        self.query_activation = query_activation
        self.normalised = normalised
        query_dim = 0 if query_activation == "none" else spec.dim
        self.qkv_dims = (query_dim, spec.dim if key_dim is None else key_dim, spec.dim)
        self.qkv = nn.Linear(spec.dim, sum(self.qkv_dims), bias=qkv_bias)
        self.proj: nn.Module = nn.Identity()
        nn.init.xavier_uniform_(self.qkv.weight)
        if output_projection:
            self.proj = nn.Linear(spec.dim, spec.dim, bias=qkv_bias)
        for layer in (self.qkv, self.proj):
            if isinstance(layer, nn.Linear) and qkv_bias:
                nn.init.zeros_(layer.bias)

    @abstractmethod
    def average(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted averages of values, and the logarithms of their normalisers.

        Args:
            key: (B, N, K), float32 or float64, -inf at padding.
            value: (B, N, D) of the same type.

        Returns:
            (B, N, D), zero where a token sees no key, and (B, N, K), then -inf. N may be 1 where all tokens have the
            same average.
        """

    @abstractmethod
    def position_bias(self, length: int) -> Tensor:
        """w (G, N, N) with G = 1 or one for each key channel; -inf where token t does not see token t'."""

    def losses(self, length: int, batch_size: int) -> Losses:
        """Losses (B,) that go with an output; none unless a subclass has some."""
        return {}

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Losses]:
        """Mixes the tokens of `x` (B, N, D); a sample without a real token gives zero.

        Raises:
            ValueError: for no token, more tokens than there are position biases, a mask that is not bool, or a context.
        """
        self._check(x, padding_mask, context, context_mask)
        query, key, value = self._queries_keys_values(x)
        largest = _largest_log_sum(x)
        with without_autocast(x):
            average, log_sum = self.average(_masked(key, padding_mask), value)
            y = self._merge(query, average, log_sum, largest)
            losses = self.losses(x.shape[1], x.shape[0])
        y = self.proj(y.to(x.dtype))
        if y.shape[1] != x.shape[1]:
            y = y.repeat(1, x.shape[1], 1)
        if padding_mask is not None:
            y = y.masked_fill(~padding_mask.any(1)[:, None, None], 0.0)
        return (y, losses) if losses else y

    def _check(
        self, x: Tensor, padding_mask: Tensor | None, context: Tensor | None, context_mask: Tensor | None
    ) -> None:
        if context is not None or context_mask is not None:
            raise ValueError(f"{type(self).__name__} takes no context: {self.capabilities().reasons['context']}")
        check_mask(padding_mask)
        if not x.shape[1]:
            raise ValueError("there is no token")
        if not self.any_length and x.shape[1] > self.spec.max_length:
            raise ValueError(f"{x.shape[1]} tokens, but there are position biases for {self.spec.max_length} only")
        if not self.any_length and self.spec.grid is not None and x.shape[1] != self.spec.max_length:
            # Its biases by position would be those between other places.
            raise ValueError(
                f"{x.shape[1]} tokens are of another grid than that of the position biases, {self.spec.grid}"
            )

    def _queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, ..., D) each, the query of width 0 where there is none; in float32 at least."""
        if self.spec.dim <= NARROW and _is_plain(self.qkv):
            biases = (None,) * 3 if self.qkv.bias is None else self.qkv.bias.split(self.qkv_dims)
            weights = self.qkv.weight.split(self.qkv_dims)
            parts = [nn.functional.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        else:
            parts = list(self.qkv(x).split(self.qkv_dims, -1))
        query, key, value = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts)
        return query, key, value

    def _merge(self, query: Tensor, average: Tensor, log_sum: Tensor, largest: float) -> Tensor:
        """The gate times the average, or times the sum, whose logarithm is at most `largest`."""
        if not self.normalised:
            average = average * spread(log_sum.clamp(max=largest).exp(), average)
        if self.query_activation == "none":
            return average
        return _ACTIVATIONS[self.query_activation](query) * average

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (B, D) for the next token (B, D), and the state after it; equals the causal parallel form.

        Raises:
            ValueError: if the mixer is not built causal, or has no position bias for a further token.
        """
        check_decodes(self.spec)
        query, key, value = self._queries_keys_values(x_t)
        largest = _largest_log_sum(x_t)
        with without_autocast(x_t):
            average, log_sum, state = self.average_step(key, value, state)
            y = self._merge(query, average, log_sum, largest)
        return self.proj(y.to(x_t.dtype)), state

    def average_step(self, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """`average` for one more key (B, K) and value (B, D): (B, D), (B, K) and the state after it."""
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")

    def _nothing(self, batch_size: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values (B, length, K or D) of no token."""
        weight = self.qkv.weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        _, key_dim, value_dim = self.qkv_dims
        key = torch.full((batch_size, length, key_dim), -math.inf, device=weight.device, dtype=wide)
        return key, key.new_zeros(batch_size, length, value_dim)

    def implied_map(
        self, x: Tensor, padding_mask: Tensor | None = None, channels: Sequence[int] | None = None
    ) -> Tensor:
        """What each value counts for in each output, before the output projection: AFT's Eqn 3.

            a_t^i = gate(Q_t^i) exp(K^i + w_t) / sum_t' exp(K_t'^i + w_tt')

        Args:
            x: (B, N, D).
            padding_mask: (B, N), True at real tokens.
            channels: the C channels i that are wanted; None for all D.

        Returns:
            (B, C, N, N): each channel is a head of its own. A row that sees no key is zero.
        """
        self._check(x, padding_mask, None, None)
        query, key, value = self._queries_keys_values(x)
        largest, key = _largest_log_sum(x), _masked(key, padding_mask)
        wanted = list(range(self.spec.dim) if channels is None else channels)
        of_key = [channel * key.shape[-1] // self.spec.dim for channel in wanted]
        with without_autocast(x):
            bias = self.position_bias(x.shape[1]).to(key.dtype)
        logits = key[..., of_key].mT[:, :, None] + (bias if bias.shape[0] == 1 else bias[of_key])
        log_sum = logits.logsumexp(-1, keepdim=True)
        weights = (logits - torch.where(log_sum.isinf(), 0.0, log_sum)).exp()
        ones = torch.ones_like(value[..., wanted])
        gates = self._merge(query[..., wanted] if query.shape[-1] else query, ones, log_sum[..., 0].mT, largest)
        return gates.mT[..., None] * weights

    def flops(self, length: int) -> int:
        """Linear layers, the average and the gate, 2 per multiply-add; an exponential is one operation."""
        outputs = self.spec.dim if isinstance(self.proj, nn.Linear) else 0
        linear = 2 * length * self.spec.dim * (sum(self.qkv_dims) + outputs)
        return linear + self.average_flops(length) + length * self.qkv_dims[0]

    @abstractmethod
    def average_flops(self, length: int) -> int:
        """Floating-point operations of `average` for one sample."""


def unseen(bias: Tensor, causal: bool) -> Tensor:
    """Biases (..., N, N), with -inf at the future when causal."""
    if not causal:
        return bias
    future = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).triu(1)
    return bias.masked_fill(future, -math.inf)


def average_of(logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The average (B, D) of values (B, M, D) with weights exp(logits) (B, M, K), and its log_sum (B, K)."""
    log_sum = logits.logsumexp(1)
    share = (logits - torch.where(log_sum.isinf(), 0.0, log_sum)[:, None]).exp()
    return (spread(share, value) * value).sum(1), log_sum


def _largest_log_sum(x: Tensor) -> float:
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    return LARGEST_LOG_SUM_OF_HALF if dtype == torch.float16 else LARGEST_LOG_SUM


def _is_plain(layer: nn.Module) -> bool:
    """Whether a call of `layer` is the product with its weight, and no hook would miss it."""
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def _masked(key: Tensor, padding_mask: Tensor | None) -> Tensor:
    return key if padding_mask is None else key.masked_fill(~padding_mask[..., None], -math.inf)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "softplus": nn.functional.softplus,
    "identity": lambda query: query,
}
