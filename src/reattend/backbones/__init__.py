"""Models that hold the mixers: each is handed a mixer factory, never the name of an attention."""

from __future__ import annotations

from typing import Any

from reattend.backbones.ar_decoder import ARDecoder
from reattend.backbones.build import build_backbone
from reattend.backbones.lra_encoder import LRAEncoder
from reattend.backbones.uea_encoder import UEAEncoder

__all__ = ["ARDecoder", "LRAEncoder", "UEAEncoder", "VisionTransformer", "build_backbone"]


def __getattr__(name: str) -> Any:
    # Found on first use: importing timm takes seconds, which no other model needs.
    if name == "VisionTransformer":
        from reattend.backbones.vision_transformer import VisionTransformer

        return VisionTransformer
    raise AttributeError(f"module 'reattend.backbones' has no attribute '{name}'")
