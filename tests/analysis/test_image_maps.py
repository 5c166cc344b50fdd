"""Attention maps of vision transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reattend.analysis.image_maps import maps_figure, maps_of_image, relative_maps
from reattend.attention import MultiHeadAttention
from reattend.attention.aft.conv import AFTConv
from reattend.attention.lambda_layer import LambdaLayer
from reattend.backbones import VisionTransformer
from reattend.errors import ReattendError

SHAPE = {"image_size": 12, "patch_size": 4, "num_outputs": 2, "dim": 8, "depth": 2, "num_heads": 2}


def test_relative_maps_are_means_over_queries_and_images() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(MultiHeadAttention, **SHAPE).eval()
    images = torch.randn(5, 3, 12, 12)
    seen: list[torch.Tensor] = []
    hook = model.blocks[1].attn.register_forward_pre_hook(lambda mixer, inputs: seen.append(inputs[0]))
    found = relative_maps(model, images.split([3, 2]))
    hook.remove()
    with torch.no_grad():
        weights = torch.cat([model.blocks[1].attn.attention_map(x) for x in seen])[..., 1:, 1:]
    assert [layer.layer for layer in found] == [0, 1]
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            pairs = [
                (y * 3 + x, (y + dy) * 3 + x + dx)
                for y in range(3)
                for x in range(3)
                if 0 <= y + dy < 3 and 0 <= x + dx < 3
            ]
            expected = torch.stack([weights[:, :, q, k] for q, k in pairs]).mean((0, 1))
            torch.testing.assert_close(found[1].values[:, dy + 2, dx + 2], expected)


def test_the_map_of_an_image_is_that_of_the_class_token_or_of_the_middle() -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 3, 12, 12)
    for pooling, query in (("class_token", 0), ("mean", 4)):
        model = VisionTransformer(MultiHeadAttention, **SHAPE, pooling=pooling).eval()
        seen: list[torch.Tensor] = []
        model.blocks[0].attn.register_forward_pre_hook(lambda mixer, inputs, seen=seen: seen.append(inputs[0]))
        found = maps_of_image(model, image)
        with torch.no_grad():
            weights = model.blocks[0].attn.attention_map(seen[0])[0, :, query, -9:].view(2, 3, 3)
        torch.testing.assert_close(found[0].values, weights)


def test_channels_stand_for_heads_of_the_attention_free_transformer() -> None:
    shape = SHAPE | {"dim": 24}
    model = VisionTransformer(lambda spec: AFTConv(spec, kernel_size=3), **shape, pooling="mean").eval()
    found = relative_maps(model, [torch.randn(2, 3, 12, 12)])
    assert found[0].heads == [0, 3, 6, 9, 12, 15, 18, 21]
    figure = maps_figure(found, "title", torch.randn(3, 12, 12))
    assert len(figure.axes) == 3 * 8


def test_what_has_no_map_is_told() -> None:
    model = VisionTransformer(LambdaLayer, **SHAPE, pooling="mean").eval()
    with pytest.raises(
        ReattendError, match="no layer of the model has an attention map, of the attention in it: LambdaLayer"
    ):
        relative_maps(model, [torch.randn(2, 3, 12, 12)])
    with pytest.raises(ReattendError, match="no image"):
        relative_maps(nn.Identity(), [])
