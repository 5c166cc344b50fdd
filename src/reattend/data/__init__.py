"""Data: file formats, preparation, samplers, stand-ins and data modules."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reattend.data.images.module import ImageData
    from reattend.data.language.module import TextData
    from reattend.data.language.pixels import PixelData
    from reattend.data.lra.module import LRAData
    from reattend.data.time_series import TimeSeriesData

__all__ = ["ImageData", "LRAData", "PixelData", "TextData", "TimeSeriesData"]

_MODULES = {
    "ImageData": "images.module",
    "LRAData": "lra.module",
    "PixelData": "language.pixels",
    "TextData": "language.module",
    "TimeSeriesData": "time_series",
}


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import, and checksums, readers and samplers do not need it.
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
