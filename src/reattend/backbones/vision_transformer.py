"""The vision transformer of DeiT, timm's own, with any mixer in the place of its attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import vision_transformer as timm_vit
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reattend.attention import MixerSpec, split_losses
from reattend.attention.contract import Losses, Mixer
from reattend.backbones.losses import OverLayers, over_layers

Pooling = Literal["class_token", "mean"]
Positions = Literal["learned", "none"]


class VisionTransformer(timm_vit.VisionTransformer):
    """Classifier of square images with timm's pre-norm vision transformer (DeiT: Touvron et al., ICML 2021).

    Embeds patches, puts a class token first, adds learned positions, runs `depth` layers
    x <- x + DropPath(Mixer(LayerNorm(x))), x <- x + DropPath(MLP(LayerNorm(x))), then LayerNorm, the class token or the
    mean over tokens, and one linear layer. It is a model of timm with timm's names: checkpoints of timm and DeiT load
    by name, and `forward_features`, `forward_intermediates`, `reset_classifier` and timm's data configuration work.
    Linear layers `qkv` and `proj` of mixers start as DeiT starts every linear layer: normal of 0.02, truncated,
    biases 0.

    Images may be larger or smaller than `image_size` where the mixers take another number of tokens; learned positions
    are resampled.

    Args:
        mixers: makes the mixer of each layer; the layers may differ.
        image_size: height and width S in pixels.
        channels: of the images.
        num_outputs: classes.
        patch_size: height and width of a patch, a divisor of `image_size`.
        dim: width D.
        depth: number of layers.
        num_heads: heads of each mixer.
        mlp_ratio: width of the MLP over D.
        pooling: what the classifier sees; with `mean` there is no class token.
        class_token_std: standard deviation that the class token is drawn with; None leaves timm's, 1e-6.
        positions: whether positions are learned or the mixers alone know them.
        dropout: probability; after the positions, in mixers' and MLPs' outputs.
        drop_path: probability of leaving out a branch of the last layer, falling linearly to 0 at the first.
        layer_losses: whether losses of one name are averaged over the layers that return them, or summed.

    Raises:
        ValueError: `patch_size` does not divide `image_size`.
    """

    def __init__(
        self,
        mixers: Callable[[MixerSpec], Mixer],
        *,
        image_size: int,
        channels: int = 3,
        num_outputs: int,
        patch_size: int = 16,
        dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        pooling: Pooling = "class_token",
        positions: Positions = "learned",
        class_token_std: float | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_losses: OverLayers = "mean",
    ) -> None:
        if image_size % patch_size:
            raise ValueError(f"patch_size={patch_size} does not divide image_size={image_size}")
        super().__init__(
            img_size=image_size,
            patch_size=patch_size,
            in_chans=channels,
            num_classes=num_outputs,
            global_pool="token" if pooling == "class_token" else "avg",
            embed_dim=dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            class_token=pooling == "class_token",
            pos_embed="learn" if positions == "learned" else "none",
            fc_norm=False,
            dynamic_img_size=True,
            pos_drop_rate=dropout,
            proj_drop_rate=dropout,
            drop_path_rate=drop_path,
            norm_layer=partial(nn.LayerNorm, eps=1e-6),
            block_fn=MixerBlock,
            attn_layer=nn.Identity,  # replaced below: this hook tells no layer index that a factory could go by
        )
        self.layer_losses: OverLayers = layer_losses
        self.grid = image_size // patch_size
        prefix = self.num_prefix_tokens
        for layer, block in enumerate(self.blocks):
            block.attn = mixers(
                MixerSpec(
                    dim=dim,
                    num_heads=num_heads,
                    max_length=prefix + self.grid**2,
                    grid=(self.grid, self.grid),
                    prefix_tokens=prefix,
                    layer=layer,
                    num_layers=depth,
                )
            )
            _start_as_in_deit(block.attn)
        if class_token_std is not None and self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=class_token_std)
        self.pretrained_cfg = self.default_cfg = {
            "input_size": (channels, image_size, image_size),
            "num_classes": num_outputs,
            "pool_size": None,
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        }

    @staticmethod
    def place(pooling: Pooling = "class_token", **options: Any) -> dict[str, Any]:
        """What is known of the mixers' place without the images: a square grid behind a class token, if any."""
        prefix = int(pooling == "class_token")
        return {"grid": (8, 8), "prefix_tokens": prefix, "max_length": 64 + prefix}

    def example(self) -> dict[str, Tensor]:
        """Inputs of one sample, all zero, to count what the model costs."""
        return {"x": torch.zeros(1, self.in_chans, *self.patch_embed.img_size)}

    def forward(  # type: ignore[override]
        self, x: Tensor, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, Losses]:
        """Logits (B, num_outputs) for images (B, C, S, S), and the mixers' losses, each (B,).

        Raises:
            ValueError: for images that are not square, or not whole patches; or with a mask.
        """
        if padding_mask is not None:
            raise ValueError("images have no padding")
        x = self.norm_pre(self.patch_drop(self._pos_embed(self._patches(x))))
        losses = []
        for block in cast("list[MixerBlock]", self.blocks):
            if self.grad_checkpointing and self.training:
                x, layer_losses = checkpoint(block.with_losses, x, use_reentrant=False)
            else:
                x, layer_losses = block.with_losses(x)
            losses.append(layer_losses)
        return self.forward_head(self.norm(x)), over_layers(losses, self.layer_losses)

    def _patches(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        patch = self.patch_embed.patch_size[0]
        # Mixers would read the tokens of another shape as a square of as many.
        if height != width or height % patch:
            raise ValueError(f"images are {height}x{width}: they must be square, their sides multiples of {patch}")
        patches: Tensor = self.patch_embed(x)
        return patches


class MixerBlock(timm_vit.Block):
    """timm's block, which can hand on the losses of its mixer."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Maps `x` (B, N, D) to the same shape, as timm's feature extraction calls it: without losses.

        Raises:
            ValueError: with a mask.
        """
        if attn_mask is not None or is_causal:
            raise ValueError("blocks with a mixer take no attention mask")
        return self.with_losses(x)[0]

    def with_losses(self, x: Tensor) -> tuple[Tensor, Losses]:
        """Maps `x` (B, N, D) to the same shape, and hands on the mixer's losses."""
        mixed, losses = split_losses(self.attn(self.norm1(x)))
        x = x + self.drop_path1(self.ls1(mixed))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x)))), losses


def _start_as_in_deit(mixer: nn.Module) -> None:
    for name, module in mixer.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in ("qkv", "proj"):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
