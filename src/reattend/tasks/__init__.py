"""Learning problems as Lightning modules around a backbone."""

from __future__ import annotations

from reattend.tasks.classification import Classification
from reattend.tasks.image_classification import ImageClassification
from reattend.tasks.language_modelling import ByteModelling, LanguageModelling, PixelModelling, WordModelling
from reattend.tasks.regression import Regression

__all__ = [
    "ByteModelling",
    "Classification",
    "ImageClassification",
    "LanguageModelling",
    "PixelModelling",
    "Regression",
    "WordModelling",
]
