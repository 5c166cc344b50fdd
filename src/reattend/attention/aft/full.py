"""AFT-full: a learned bias for each pair of positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reattend.attention.aft.bias import PositionBias, bias_problems, mean_entropy, shared_bias_flops
from reattend.attention.aft.mixer import MAP_REASON, AFTMixer, QueryActivation, average_of, entropy_note, unseen
from reattend.attention.contract import Capabilities, Losses, MixerSpec, State
from reattend.attention.ops.shared_bias_average import shared_bias_average


class AFTFull(AFTMixer):
    """The Attention Free Transformer with a bias w_tt' for each pair of positions, which all channels share.

        Y_t = gate(Q_t) * sum_t' exp(K_t' + w_tt') * V_t' / sum_t' exp(K_t' + w_tt')

    (Zhai et al. 2021, arXiv 2105.14103, Eqn 2.) When causal, t' <= t. The sums of all samples are one product with
    exp(w): memory is T^2 + T D for the layer, not for each sample or channel.

    Args:
        spec: the place it is built for; its `max_length` T is the number of positions, and shorter sequences have the
            first ones.
        bias_rank: d' of w_tt' = u_t . v_t', with u and v of shape (T, d'); None for a free matrix w.
        bias_std: standard deviation of w, or of u and v, at the start. The paper draws them from N(0, 10^-2), which is
            read as a variance: then w has much the same spread of 0.1 either way (0.08 for d' = 64).
        entropy_loss: return the mean entropy of softmax(w_t) over the rows that an input reaches as the loss
            `bias_entropy`, which makes w sparser.
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
            bias_rank=bias_rank,
            bias_std=bias_std,
            entropy_loss=entropy_loss,
            query_activation=query_activation,
            normalised=normalised,
            output_projection=output_projection,
            qkv_bias=qkv_bias,
        )
        self.entropy_loss = entropy_loss
        self.bias = PositionBias(spec.max_length, spec.max_length, bias_rank, bias_std)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            causal=True,
            decoding=True,
            reasons={
                "context": "position biases are between the positions of one sequence",
                "attention_map": MAP_REASON,
            }
            | entropy_note(options),
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        return super().problems(spec, **options) + bias_problems(options)

    def average(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return shared_bias_average(self._bias(key.shape[1]).to(key.dtype), key, value, self.spec.causal)

    def _bias(self, length: int) -> Tensor:
        """w (N, N)."""
        if self.bias.weight is not None:
            return self.bias.weight[:length, :length]
        rows, columns = self.bias.factors()
        return rows[:length] @ columns[:length].mT

    def position_bias(self, length: int) -> Tensor:
        return unseen(self._bias(length), self.spec.causal)[None]

    def losses(self, length: int, batch_size: int) -> Losses:
        if not self.entropy_loss:
            return {}
        return {"bias_entropy": mean_entropy(self.position_bias(length)).expand(batch_size)}

    def initial_state(self, batch_size: int) -> State:
        keys, values = self._nothing(batch_size, 0)
        return {"keys": keys, "values": values}

    def average_step(self, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        position = state["keys"].shape[1]
        if position >= self.spec.max_length:
            raise ValueError(f"there are position biases for {self.spec.max_length} tokens only")
        keys = torch.cat([state["keys"], key[:, None]], 1)
        values = torch.cat([state["values"], value[:, None]], 1)
        if self.bias.weight is not None:
            bias = self.bias.weight[position, : position + 1]
        else:
            rows, columns = self.bias.factors()
            bias = columns[: position + 1] @ rows[position]
        average, log_sum = average_of(keys + bias.to(keys.dtype)[:, None], values)
        return average, log_sum, {"keys": keys, "values": values}

    def average_flops(self, length: int) -> int:
        return shared_bias_flops(length, self.spec.dim, self.bias, self.spec.causal)
