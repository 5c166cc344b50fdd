"""Images by sub-pixels as a data source."""

from __future__ import annotations

from typing import Any, Self

from reattend.config.schema import RunConfig
from reattend.data.images.sets import SMALL
from reattend.data.images.source import ImageSource
from reattend.data.source import DataFacts
from reattend.errors import ReattendError, nearest

LEVELS = 256


class PixelSource(ImageSource):
    """A set of small images, read as sequences."""

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        """What the task of `config` learns from."""
        check_name(config.task.dataset)
        return super().from_config(config)

    @staticmethod
    def options(config: RunConfig) -> dict[str, Any]:
        """The options of the task's data."""
        return dict(config.task.data_options)

    def _facts(self, sizes: Any, classes: int) -> DataFacts:
        images = super()._facts(sizes, classes)
        return DataFacts(shape_of(self.image_size, images.shape["channels"]), images.sizes)


def check_name(dataset: str | None) -> None:
    """Refuses sets whose images are not all of one small size.

    Raises:
        ReattendError: `dataset` is one.
    """
    if dataset not in SMALL:
        raise ReattendError(
            f"task.dataset={dataset}: images by sub-pixels are {' and '.join(SMALL)}.{nearest(str(dataset), SMALL)}"
        )


def shape_of(side: int, channels: int) -> dict[str, int]:
    """What a decoder of images of S x S pixels and C channels is built from."""
    return {"vocabulary": LEVELS, "max_length": channels * side * side, "num_outputs": LEVELS}
