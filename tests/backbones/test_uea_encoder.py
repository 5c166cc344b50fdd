"""The time-series encoder against the followed code's layers, built from torch's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention import Capabilities, LayeredMixerFactory, Mixer, MixerFactory, MixerSpec, MultiHeadAttention
from reattend.backbones import UEAEncoder

DIMS: dict[str, Any] = {
    "num_channels": 3,
    "num_outputs": 4,
    "max_length": 7,
    "dim": 16,
    "depth": 2,
    "num_heads": 4,
    "ff_dim": 24,
    "dropout": 0.0,
}


def series() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    return torch.randn(3, 7, 3) * mask[..., None], mask


class FollowedLayer(nn.Module):
    """TransformerBatchNormEncoderLayer of gzerveas/mvts_transformer, as its description has it."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(16, 24), nn.Linear(24, 16)
        self.norms = nn.ModuleList(nn.BatchNorm1d(16) if norm == "batch" else nn.LayerNorm(16) for _ in range(2))
        self.norm = norm

    def normalise(self, index: int, x: Tensor) -> Tensor:
        norm = self.norms[index]
        y: Tensor = norm(x.transpose(1, 2)).transpose(1, 2) if self.norm == "batch" else norm(x)
        return y

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.normalise(0, x + self.attention(x, x, x, key_padding_mask=~mask, need_weights=False)[0])
        return self.normalise(1, x + self.linear2(F.gelu(self.linear1(x))))


@pytest.mark.parametrize(("norm", "flowformer"), [("batch", False), ("layer", False), ("layer", True)])
def test_equals_the_followed_model(norm: str, flowformer: bool) -> None:
    torch.manual_seed(0)
    options = {"final_norm": True, "padding_in_mixers": "seen"} if flowformer else {}
    ours = UEAEncoder(MixerFactory(MultiHeadAttention), norm=norm, **DIMS, **options)  # type: ignore[arg-type]
    layers = [FollowedLayer(norm) for _ in range(2)]
    for layer, own in zip(layers, ours.layers, strict=True):
        mixer = own.mixer
        assert isinstance(mixer, MultiHeadAttention)
        layer.attention.in_proj_weight.data = mixer.qkv.weight.data
        layer.attention.in_proj_bias.data = mixer.qkv.bias.data  # type: ignore[union-attr]
        layer.attention.out_proj.load_state_dict(mixer.proj.state_dict())
        layer.linear1.load_state_dict(own.expand.state_dict())  # type: ignore[union-attr]
        layer.linear2.load_state_dict(own.contract.state_dict())  # type: ignore[union-attr]
    x, mask = series()
    h = ours.embedding(x) * math.sqrt(16) + ours.positions
    for layer in layers:
        h = layer(h, torch.ones_like(mask) if flowformer else mask)
    if flowformer:
        h = F.layer_norm(h, (16,))
    expected = ours.head((F.gelu(h) * mask[..., None]).flatten(1))
    logits, losses = ours(x, mask)
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)
    assert losses == {}


def test_corrected_batch_norm_makes_the_model_blind_to_padding() -> None:
    x, mask = series()
    other = torch.where(mask[..., None], x, torch.full_like(x, 9.0))
    outputs = {}
    for over in ("all", "real"):
        torch.manual_seed(0)
        model = UEAEncoder(MixerFactory(MultiHeadAttention), batch_norm_over=over, **DIMS)  # type: ignore[arg-type]
        outputs[over] = (model(x, mask)[0] - model(other, mask)[0]).abs().max()
    assert outputs["real"] < 1e-5
    assert outputs["all"] > 1e-3


def test_another_length_is_refused_by_name() -> None:
    model = UEAEncoder(MixerFactory(MultiHeadAttention), **DIMS)
    with pytest.raises(ValueError, match="5 steps, the classifier needs 7"):
        model(torch.zeros(1, 5, 3))


class Lossy(Mixer):
    """Returns a loss of its layer's index plus one per sample."""

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.layer = spec.layer

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities()

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return x, {"own": torch.full((len(x),), self.layer + 1.0)}


def test_losses_are_averaged_over_the_layers_that_return_them() -> None:
    x, mask = series()
    _, losses = UEAEncoder(MixerFactory(Lossy), **DIMS)(x, mask)
    torch.testing.assert_close(losses["own"], torch.full((3,), 1.5))
    mixed = LayeredMixerFactory(MixerFactory(MultiHeadAttention), {-1: MixerFactory(Lossy)})
    _, losses = UEAEncoder(mixed, **DIMS)(x, mask)
    torch.testing.assert_close(losses["own"], torch.full((3,), 2.0))
