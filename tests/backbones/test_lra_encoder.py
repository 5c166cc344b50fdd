"""The Long Range Arena encoder against the followed code's model, built from torch's own layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention import MixerFactory, MultiHeadAttention
from reattend.attention.primal import Primal
from reattend.backbones import LRAEncoder

DIMS: dict[str, Any] = {
    "vocabulary": 11,
    "num_outputs": 3,
    "max_length": 7,
    "dim": 16,
    "depth": 2,
    "num_heads": 2,
    "ff_dim": 24,
    "dropout": 0.0,
}
LENGTHS = torch.tensor([7, 4, 1])


def tokens(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    mask = (torch.arange(7) < LENGTHS[:, None]).view(3, *[1] * (len(shape) - 2), 7).expand(shape)
    return torch.randint(1, 11, shape) * mask, mask


def encoder(**options: Any) -> LRAEncoder:
    torch.manual_seed(0)
    return LRAEncoder(MixerFactory(MultiHeadAttention), **DIMS, **options)


def followed(ours: LRAEncoder, x: Tensor, mask: Tensor) -> Tensor:
    """Token vectors as model.py of Nystromformer's LRA code describes them, with torch's own attention."""
    h = ours.tokens(x) + ours.positions[-7:]
    if ours.class_token is not None:
        h = torch.cat([(ours.class_token + ours.positions[0]).expand(len(x), 1, -1), h], 1)
        mask = F.pad(mask, (1, 0), value=True)
    for layer in ours.layers:
        mixer: Any = layer.mixer
        attention = nn.MultiheadAttention(16, 2, batch_first=True)
        attention.in_proj_weight.data, attention.in_proj_bias.data = mixer.qkv.weight.data, mixer.qkv.bias.data
        attention.out_proj.load_state_dict(mixer.proj.state_dict())
        z = F.layer_norm(h, (16,))
        h = h + attention(z, z, z, key_padding_mask=~mask, need_weights=False)[0]
        h = h + layer.contract(F.gelu(layer.expand(F.layer_norm(h, (16,)))))  # type: ignore[operator]
    return F.layer_norm(h, (16,)) * mask[..., None]


@pytest.mark.parametrize("pooling", ["mean", "class_token"])
@pytest.mark.parametrize("mean_over", ["all", "real"])
def test_equals_the_followed_model(pooling: Any, mean_over: Any) -> None:
    ours = encoder(pooling=pooling, mean_over=mean_over)
    x, mask = tokens(3, 7)
    h = followed(ours, x, mask)
    count = torch.full((3, 1), 7) if mean_over == "all" else LENGTHS[:, None]
    pooled = h[:, 0] if pooling == "class_token" else h.sum(1) / count
    logits, losses = ours(x, mask)
    torch.testing.assert_close(logits, ours.head(pooled), atol=2e-5, rtol=1e-4)
    assert losses == {}


def test_compares_two_documents_with_one_encoder() -> None:
    ours = encoder(num_documents=2)
    x, mask = tokens(3, 2, 7)
    a, b = (followed(ours, x[:, i], mask[:, i]).mean(1) for i in range(2))
    logits, _ = ours(x, mask)
    torch.testing.assert_close(logits, ours.head(torch.cat([a, b, a * b, a - b], -1)), atol=2e-5, rtol=1e-4)
    assert ours(**ours.example())[0].shape == (1, 3)


def test_losses_of_mixers_are_means_over_a_pair() -> None:
    torch.manual_seed(0)
    factory = MixerFactory(Primal, {"rank": 3})
    pair = LRAEncoder(factory, **DIMS, num_documents=2).eval()
    x, mask = tokens(3, 2, 7)
    _, both = pair(x, mask)
    single = LRAEncoder(factory, **DIMS).eval()
    single.load_state_dict({k: v for k, v in pair.state_dict().items() if not k.startswith("head")}, strict=False)
    for name, value in both.items():
        apart = [single(x[:, i], mask[:, i])[1][name] for i in range(2)]
        torch.testing.assert_close(value, (apart[0] + apart[1]) / 2)
    assert both


@pytest.mark.parametrize("pooling", ["mean", "class_token"])
@pytest.mark.parametrize("mean_over", ["all", "real"])
def test_a_batch_cut_to_its_longest_sequence_gives_the_same(pooling: Any, mean_over: Any) -> None:
    ours = encoder(pooling=pooling, mean_over=mean_over)
    x, mask = tokens(3, 7)
    whole, _ = ours(x[1:], mask[1:])
    cut, _ = ours(x[1:, :4], mask[1:, :4])
    torch.testing.assert_close(whole, cut)


def test_longer_sequences_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"8 tokens.*positions for 7"):
        encoder()(torch.ones(1, 8, dtype=torch.int64))
