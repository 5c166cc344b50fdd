"""Data: file formats, preparation, samplers, stand-ins and data modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reattend.data.images.module import ImageData
    from reattend.data.lra.module import LRAData
    from reattend.data.time_series import TimeSeriesData

__all__ = ["ImageData", "LRAData", "TimeSeriesData"]


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import, and checksums, readers and samplers do not need it.
    if name == "TimeSeriesData":
        from reattend.data.time_series import TimeSeriesData

        return TimeSeriesData
    if name == "LRAData":
        from reattend.data.lra.module import LRAData

        return LRAData
    if name == "ImageData":
        from reattend.data.images.module import ImageData

        return ImageData
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
