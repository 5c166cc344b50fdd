"""AFT-simple: one average of all values, or of the past, for each channel."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from reattend.attention.aft.mixer import MAP_REASON, AFTMixer, QueryActivation, unseen
from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.ops.merged_averages import merge
from reattend.attention.ops.overall_average import overall_average
from reattend.attention.ops.running_average import running_average


class AFTSimple(AFTMixer):
    """The Attention Free Transformer without position biases.

        Y_t = gate(Q_t) * sum_t' softmax(K)_t' * V_t',   softmax over time, for each channel on its own

    (Zhai et al. 2021, arXiv 2105.14103, Eqn 5.) When causal, t' <= t: y_t = y_{t-1} + exp(K_t - z_t) (V_t - y_{t-1})
    with z_t = log sum_{t'<=t} exp(K_t'). Time and memory are linear in length, and a decoder's state is z and y.

    Args:
        spec: the place it is built for.
        query_activation: the gate; `none` has no query at all.
        normalised: divide by the sum of the weights.
        output_projection: a last linear layer D to D.
        qkv_bias: whether the linear layers have biases.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    any_length: ClassVar[bool] = True

    def __init__(
        self,
        spec: MixerSpec,
        *,
        query_activation: QueryActivation = "sigmoid",
        normalised: bool = True,
        output_projection: bool = True,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(
            spec,
            query_activation=query_activation,
            normalised=normalised,
            output_projection=output_projection,
            qkv_bias=qkv_bias,
        )

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            causal=True,
            decoding=True,
            constant_state=True,
            time_exponent=1.0,
            reasons={
                "context": "all tokens would get the same average of it, and see nothing of their own sequence",
                "attention_map": MAP_REASON,
            },
        )

    def average(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return running_average(key, value) if self.spec.causal else overall_average(key, value)

    def position_bias(self, length: int) -> Tensor:
        weight = self.qkv.weight
        return unseen(torch.zeros(1, length, length, device=weight.device, dtype=weight.dtype), self.spec.causal)

    def initial_state(self, batch_size: int) -> State:
        log_sum, average = (x[:, 0] for x in self._nothing(batch_size, 1))
        return {"average": average, "log_sum": log_sum}

    def average_step(self, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        average, log_sum = merge([(state["average"], state["log_sum"]), (value, key)])
        return average, log_sum, {"average": average, "log_sum": log_sum}

    def average_flops(self, length: int) -> int:
        return (11 if self.spec.causal else 5) * length * self.spec.dim
