"""Attention mechanisms as mixers with one contract: (B, N, D) to (B, N, D)."""

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, split_losses
from reattend.attention.factory import LayeredMixerFactory, MixerFactory
from reattend.attention.multihead import MultiHeadAttention

__all__ = [
    "Capabilities",
    "LayeredMixerFactory",
    "Mixer",
    "MixerFactory",
    "MixerSpec",
    "MultiHeadAttention",
    "split_losses",
]
