"""Models that hold the mixers: each is handed a mixer factory, never the name of an attention."""

from __future__ import annotations

from reattend.backbones.build import build_backbone
from reattend.backbones.lra_encoder import LRAEncoder
from reattend.backbones.uea_encoder import UEAEncoder

__all__ = ["LRAEncoder", "UEAEncoder", "build_backbone"]
