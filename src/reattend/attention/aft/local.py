"""AFT-local: learned biases between near positions, and the same weight of exp(key) at any distance beyond."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from reattend.attention.aft.bias import PositionBias, bias_problems, mean_entropy, shared_bias_flops
from reattend.attention.aft.mixer import MAP_REASON, AFTMixer, QueryActivation, average_of, entropy_note, unseen
from reattend.attention.contract import Capabilities, Losses, MixerSpec, State
from reattend.attention.ops.merged_averages import merge
from reattend.attention.ops.overall_average import overall_average
from reattend.attention.ops.running_average import running_average
from reattend.attention.ops.shared_bias_average import shared_bias_average
from reattend.attention.ops.window_average import window_average
from reattend.attention.ops.window_tiles import block_length, skew, tiles_of_band, tiles_of_factors

Outside = Literal["zero", "minus_infinity"]
DEFAULT_WINDOW = 32
# Up to so many times the 2 s - 1 keys of a window, or s when causal, a sequence has one matrix of all biases. Measured
# on a CPU, s = 32 and 128, forward and backward: tiles take 1.1 to 1.4 times as long at T = 2 s, and 0.8 to 1.3 times
# at 3 s; causal 0.7 to 1 times at 2 s, and 0.5 to 0.7 times at 3 s.
DENSE = 1


class AFTLocal(AFTMixer):
    """The Attention Free Transformer with a bias w_tt' where |t - t'| < s, and none elsewhere.

        Y_t = gate(Q_t) * sum_t' exp(K_t' + w_tt') * V_t' / sum_t' exp(K_t' + w_tt'),   w_tt' = 0 where |t - t'| >= s

    (Zhai et al. 2021, arXiv 2105.14103, Eqn 4.) All positions count, those outside of the window by their keys alone.
    When causal, t' <= t. s = 0 is AFT-simple, s = T AFT-full. Time and memory are linear in length for one s, unless
    keys or biases lie hundreds apart, beyond what float64 sums bear.

    Free biases are T s parameters, or T (2 s - 1) when not causal. The paper's Table 3 counts 9.6 M for them, which is
    T^2 although only the window plays a part: that printed number is `AFTFull`'s.

    Args:
        spec: the place it is built for; its `max_length` T is the number of positions.
        window: s, at most T of which have an effect; None for 32, the paper's for enwik8.
        outside: `minus_infinity` leaves out what is outside of the window, the paper's ablation.
        bias_rank: d' of w_tt' = u_t . v_t', with u and v of shape (T, d'); None for free biases in the window.
        bias_std: standard deviation of w, or of u and v, at the start; see `AFTFull`.
        entropy_loss: return the mean entropy of softmax(w_t) over the rows that an input reaches, inside of the window,
            as the loss `bias_entropy`.
        query_activation: the gate; `none` has no query at all.
        normalised: divide by the sum of the weights.
        output_projection: a last linear layer D to D.
        qkv_bias: whether the linear layers have biases.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        window: int | None = None,
        outside: Outside = "zero",
        bias_rank: int | None = None,
        bias_std: float = 0.1,
        entropy_loss: bool = False,
        query_activation: QueryActivation = "sigmoid",
        normalised: bool = True,
        output_projection: bool = True,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(
            spec,
            window=window,
            outside=outside,
            bias_rank=bias_rank,
            bias_std=bias_std,
            entropy_loss=entropy_loss,
            query_activation=query_activation,
            normalised=normalised,
            output_projection=output_projection,
            qkv_bias=qkv_bias,
        )
        self.window = min(DEFAULT_WINDOW if window is None else window, spec.max_length)
        self.before = max(0, self.window - 1)
        self.after = 0 if spec.causal else self.before
        self.outside = outside
        self.entropy_loss = entropy_loss
        width = 1 + self.before + self.after
        self.bias = PositionBias(spec.max_length, width, bias_rank, bias_std) if self.window else None

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            causal=True,
            decoding=True,
            constant_state=True,
            time_exponent=1.0,
            reasons={
                "context": "position biases are between the positions of one sequence",
                "attention_map": MAP_REASON,
            }
            | entropy_note(options),
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found: list[str] = []
        window = options.get("window")
        if window is not None and window < 0:
            found.append(f"window={window} must not be negative")
        if window == 0 and options.get("outside") == "minus_infinity":
            found.append("window=0 with outside=minus_infinity leaves no token to see")
        if window == 0 and options.get("entropy_loss"):
            found.append("window=0 has no biases that entropy_loss could be of")
        if window == 1 and options.get("entropy_loss"):
            found.append("window=1 has one bias for a token, whose entropy_loss is always 0")
        if window == 1 and options.get("outside") == "minus_infinity" and options.get("normalised", True):
            found.append("window=1 with outside=minus_infinity leaves a token only itself, and biases that cancel")
        return super().problems(spec, **options) + found + bias_problems(options)

    def average(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.bias is None:
            return running_average(key, value) if self.spec.causal else overall_average(key, value)
        length = key.shape[1]
        if self._is_dense(length):
            return shared_bias_average(self._dense_bias(length).to(key.dtype), key, value, self.spec.causal)
        tiles = self._tiles(length, self._fill).to(key.dtype)
        return window_average(tiles, key, value, causal=self.spec.causal, outside=self.outside == "zero")

    def _is_dense(self, length: int) -> bool:
        return length <= DENSE * (1 + self.before + self.after)

    @property
    def _fill(self) -> float:
        """The bias outside of the window."""
        return 0.0 if self.outside == "zero" else -math.inf

    def _tiles(self, length: int, fill: float) -> Tensor:
        """w (n, L, S) of `window_average`, and `fill` outside of the window."""
        assert self.bias is not None
        if self.bias.weight is not None:
            return tiles_of_band(self.bias.weight[:length], self.spec.causal, fill)
        rows, columns = (x[:length] for x in self.bias.factors())
        return tiles_of_factors(rows, columns, self.window, self.spec.causal, fill)

    def _dense_bias(self, length: int) -> Tensor:
        """w (N, N), also of the future."""
        assert self.bias is not None
        if self.bias.weight is not None:
            return skew(self.bias.weight[:length], self._fill, self._fill)[:, self.before : self.before + length]
        rows, columns = self.bias.factors()
        product = rows[:length] @ columns[:length].mT
        return product.masked_fill(~self._near(length, product.device), self._fill)

    def _near(self, length: int, device: torch.device) -> Tensor:
        position = torch.arange(length, device=device)
        return (position - position[:, None]).abs() <= self.before

    def position_bias(self, length: int) -> Tensor:
        weight = self.qkv.weight
        bias = self._dense_bias(length) if self.bias is not None else weight.new_zeros(length, length)
        return unseen(bias, self.spec.causal)[None]

    def losses(self, length: int, batch_size: int) -> Losses:
        if not self.entropy_loss:
            return {}
        tiles = self._tiles(length, -math.inf)
        count, rows, columns = tiles.shape
        key = torch.arange(columns, device=tiles.device) + rows * torch.arange(count, device=tiles.device)[:, None]
        outside = (key < self.before) | (key >= self.before + length)
        logits = tiles.masked_fill(outside[:, None], -math.inf).flatten(0, 1)[:length]
        return {"bias_entropy": mean_entropy(logits).expand(batch_size)}

    def initial_state(self, batch_size: int) -> State:
        log_sum, average = (x[:, 0] for x in self._nothing(batch_size, 1))
        keys, values = self._nothing(batch_size, self.before)
        position = torch.zeros(batch_size, dtype=torch.int64, device=keys.device)
        return {"keys": keys, "values": values, "average": average, "log_sum": log_sum, "position": position}

    def average_step(self, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        position = state["position"]
        if int(position.max()) >= self.spec.max_length:
            raise ValueError(f"there are position biases for {self.spec.max_length} tokens only")
        keys = torch.cat([state["keys"], key[:, None]], 1)
        values = torch.cat([state["values"], value[:, None]], 1)
        logits = keys if self.bias is None else keys + self._bias_at(position).to(keys.dtype)[..., None]
        average, log_sum = average_of(logits, values)
        if self.outside == "zero":
            average, log_sum = merge([(average, log_sum), (state["average"], state["log_sum"])])
        # The oldest token is outside of the next one's window.
        before, before_log_sum = merge([(state["average"], state["log_sum"]), (values[:, 0], keys[:, 0])])
        state = {"keys": keys[:, 1:], "values": values[:, 1:], "average": before, "log_sum": before_log_sum}
        return average, log_sum, {**state, "position": position + 1}

    def _bias_at(self, position: Tensor) -> Tensor:
        """w (B, s) of the token at `position` (B) and those up to it; what is before the first token plays no part."""
        assert self.bias is not None
        if self.bias.weight is not None:
            return self.bias.weight[position]
        near = position[:, None] + torch.arange(-self.before, 1, device=position.device)
        rows, columns = self.bias.factors()
        return (columns[near.clamp(min=0)] @ rows[position][..., None]).squeeze(-1)

    def average_flops(self, length: int) -> int:
        """Pairs in tiles, each counted whole, and sums over what is outside of the window."""
        if self.bias is None:
            return (11 if self.spec.causal else 5) * length * self.spec.dim
        if self._is_dense(length):
            return shared_bias_flops(length, self.spec.dim, self.bias, self.spec.causal)
        block = block_length(self.window)
        pairs = -(-length // block) * block * (block + self.before + self.after)
        sums = 6 if self.outside == "zero" else 0
        return pairs * (self.bias.flops_of_pair + 4 * self.spec.dim) + (sums + 3) * length * self.spec.dim
