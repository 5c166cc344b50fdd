"""Every token is answered with a learned mix of itself and the mean over real tokens."""

import torch
from torch import Tensor, nn

from reattend.attention import Capabilities, Mixer, MixerSpec


class MeanMix(Mixer):
    @classmethod
    def capabilities(cls, **options) -> Capabilities:
        return Capabilities(padding_mask=True, variable_length=True, time_exponent=1.0)

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.value = nn.Linear(spec.dim, spec.dim)
        self.gate = nn.Linear(spec.dim, spec.dim)
        self.proj = nn.Linear(spec.dim, spec.dim)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, context=None, context_mask=None) -> Tensor:
        v = self.value(x)
        weight = torch.ones_like(x[..., :1]) if padding_mask is None else padding_mask.unsqueeze(-1).to(x.dtype)
        mean = (v * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
        return self.proj(torch.sigmoid(self.gate(x)) * (mean - v) + v)
