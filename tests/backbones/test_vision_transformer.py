"""The vision transformer: timm's own model with softmax attention, the sizes of AFT's Table 7 with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.aft.conv import AFTConv
from reattend.attention.aft.full import AFTFull
from reattend.attention.contract import Mixer
from reattend.attention.lambda_layer import LambdaLayer
from reattend.attention.primal import Primal
from reattend.backbones import VisionTransformer

TINY: dict[str, Any] = {"image_size": 224, "num_outputs": 1000, "dim": 192, "depth": 12, "num_heads": 3}
SMALL = TINY | {"dim": 384, "num_heads": 6}
BARE = {"pooling": "mean", "positions": "none"}
LITTLE: dict[str, Any] = {
    "image_size": 16,
    "patch_size": 4,
    "num_outputs": 5,
    "dim": 16,
    "depth": 3,
    "num_heads": 4,
}


def conv(kernel_size: int, num_filters: int) -> Callable[[MixerSpec], Mixer]:
    return lambda spec: AFTConv(spec, kernel_size=kernel_size, num_filters=num_filters)


def full(spec: MixerSpec) -> Mixer:
    return AFTFull(spec, bias_rank=128)


def test_the_class_token_starts_as_in_deit_and_nothing_else_moves() -> None:
    states = []
    for std in (None, 0.02):
        torch.manual_seed(0)
        model = VisionTransformer(MultiHeadAttention, **LITTLE | {"dim": 1024, "depth": 1}, class_token_std=std)
        states.append(model.state_dict())
    assert [float(state.pop("cls_token").std()) for state in states] == pytest.approx([1e-6, 0.02], rel=0.1)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    VisionTransformer(MultiHeadAttention, **LITTLE, **BARE, class_token_std=0.02)


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "deit_small_patch16_224"])
def test_a_model_of_timm_loads_by_name_and_gives_the_same(name: str) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model(name, depth=3).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    shape = {"dim": theirs.embed_dim, "depth": 3, "num_heads": theirs.blocks[0].attn.num_heads}
    ours = VisionTransformer(MultiHeadAttention, **(TINY | shape)).eval()
    assert set(ours.state_dict()) == set(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours(images)[0], theirs(images))
        torch.testing.assert_close(ours.forward_features(images), theirs.forward_features(images))
        for mine, other in zip(
            ours.forward_intermediates(images, intermediates_only=True),
            theirs.forward_intermediates(images, intermediates_only=True),
            strict=True,
        ):
            torch.testing.assert_close(mine, other)
    config = timm.data.resolve_model_data_config(ours)
    assert config["input_size"] == (3, 224, 224)
    assert config["interpolation"] == "bicubic"


# The counts in millions that AFT's Table 7 prints, and the exact ones of the models that fit them.
@pytest.mark.parametrize(
    ("mixer", "options", "printed", "exact"),
    [
        (MultiHeadAttention, TINY, 5.7, 5_717_416),
        (MultiHeadAttention, SMALL, 22.1, 22_050_664),
        (LambdaLayer, TINY | BARE, 4.8, 4_782_952),
        (LambdaLayer, SMALL | BARE, 17.7, 17_607_208),
        (full, TINY, 6.3, 6_322_600),
        (full, SMALL, 22.6, 22_655_848),
        (conv(11, 32), TINY | BARE, 5.4, 5_356_072),
        (conv(11, 192), TINY | BARE, 5.9, 5_962_792),
        (conv(11, 16), SMALL | BARE, 20.3, 20_298_088),
        (conv(11, 384), SMALL | BARE, 22.5, 22_541_416),
        (conv(15, 384), SMALL | BARE, 23.0, 23_020_648),
    ],
)
def test_parameters_are_those_of_table_7(
    mixer: Callable[[MixerSpec], Mixer], options: dict[str, Any], printed: float, exact: int
) -> None:
    with torch.device("meta"):
        model = VisionTransformer(mixer, **options)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == exact
    assert abs(count / 1e6 - printed) < 0.1


def test_linear_layers_start_as_in_deit() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(conv(3, 4), **(LITTLE | BARE | {"dim": 64}))
    for block in model.blocks:
        for layer in (block.attn.qkv, block.attn.proj, block.mlp.fc1):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert not layer.bias.any()


@pytest.mark.parametrize("size", [8, 16, 32])
def test_images_of_another_size_go_through_aft_conv_and_softmax(size: int) -> None:
    images = torch.randn(2, 3, size, size)
    aft = VisionTransformer(conv(3, 4), **(LITTLE | BARE))
    softmax = VisionTransformer(MultiHeadAttention, **LITTLE)
    for model in (aft, softmax):
        logits, _ = model(images)
        assert logits.shape == (2, 5)
        assert logits.isfinite().all()


def test_an_aft_conv_layer_sees_the_grid_of_a_larger_image() -> None:
    """Moving the content of a larger image by whole patches moves the tokens, where nothing is cut off."""
    torch.manual_seed(0)
    model = VisionTransformer(conv(3, 4), **(LITTLE | BARE | {"depth": 1})).eval()
    for name, parameter in model.named_parameters():
        if "gamma" in name:
            torch.nn.init.ones_(parameter)
    images = torch.zeros(1, 3, 32, 32)
    images[..., 8:16, 8:16] = torch.randn(1, 3, 8, 8)
    moved = images.roll((4, 8), (2, 3))
    with torch.no_grad():
        tokens, after = (model.forward_features(x).view(8, 8, -1) for x in (images, moved))
    torch.testing.assert_close(tokens[1:5, 1:5], after[2:6, 3:7])


@pytest.mark.parametrize("shape", [(16, 32), (8, 32), (18, 18)])
def test_images_that_are_not_square_or_not_whole_patches_are_refused(shape: tuple[int, int]) -> None:
    model = VisionTransformer(conv(3, 4), **(LITTLE | BARE))
    with pytest.raises(ValueError, match="must be square, their sides multiples of 4"):
        model(torch.randn(1, 3, *shape))


def test_a_patch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="patch_size=5 does not divide image_size=16"):
        VisionTransformer(MultiHeadAttention, **(LITTLE | {"patch_size": 5}))


def test_losses_of_mixers_come_out_and_checkpointing_changes_nothing() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(lambda spec: Primal(spec, rank=4), **LITTLE)
    images = torch.randn(3, 3, 16, 16)
    logits, losses = model(images)
    assert losses["ksvd"].shape == (3,)
    (logits.sum() + losses["ksvd"].sum()).backward()
    plain = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    model.set_grad_checkpointing()
    logits, losses = model(images)
    (logits.sum() + losses["ksvd"].sum()).backward()
    for name, parameter in model.named_parameters():
        if name in plain:
            torch.testing.assert_close(parameter.grad, plain[name])


def test_pixel_order_of_the_grid_is_that_of_the_image() -> None:
    """A 2-d mixer is told the grid without the class token."""
    seen: list[MixerSpec] = []

    def factory(spec: MixerSpec) -> Mixer:
        seen.append(spec)
        return MultiHeadAttention(spec)

    VisionTransformer(factory, **LITTLE)
    assert [spec.layer for spec in seen] == [0, 1, 2]
    assert {(spec.grid, spec.prefix_tokens, spec.max_length, spec.num_layers) for spec in seen} == {((4, 4), 1, 17, 3)}


@pytest.mark.parametrize("size", [12, 32])
def test_biases_by_position_are_those_of_one_grid(size: int) -> None:
    model = VisionTransformer(AFTFull, **LITTLE)
    with pytest.raises(ValueError, match="position biases"):
        model(torch.randn(1, 3, size, size))
