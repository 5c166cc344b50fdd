"""Images as a data source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reattend.config.schema import RunConfig
from reattend.data.images.check import check
from reattend.data.images.sets import ImageSet, image_set
from reattend.data.images.standin import CIFAR, CLASSES, FASHION, TREE
from reattend.data.source import DataFacts, DataSource
from reattend.errors import ReattendError

_STANDIN = {"fashion_mnist": FASHION, "cifar10": CIFAR}


@dataclass(frozen=True)
class ImageSource(DataSource):
    """A set of images, real or stand-in.

    Attributes:
        images: the set.
        image_size: S in pixels.
        held_out: fraction of training that is held out for validation.
    """

    images: ImageSet
    image_size: int
    held_out: float

    @classmethod
    def from_config(cls, config: RunConfig) -> ImageSource:
        """What the task of `config` learns from."""
        options, protocol = config.task.data_options, config.protocol
        images = image_set(
            config.task.dataset,
            config.data.root,
            config.data.name == "standin",
            options.get("form"),
            options.get("class_list"),
        )
        held_out = protocol.validation_fraction if protocol.selection == "validation" else 0.0
        return cls(images, options["image_size"], held_out)

    @staticmethod
    def options(config: RunConfig) -> dict[str, Any]:
        """The options of the task's data, the recipe's augmentation, and how the trainer loads."""
        return {
            **config.task.data_options,
            "augmentation": config.recipe.augmentation,
            "loader_workers": config.trainer.loader_workers,
            "pinned": config.trainer.accelerator != "cpu",
        }

    @staticmethod
    def forms(config: RunConfig) -> tuple[str, ...]:
        """Also at other sizes."""
        return ("test", *(f"test_{size}" for size in config.task.data_options.get("test_sizes", [])))

    def require(self) -> None:
        """Finds the files, and the list of them."""
        self.images.require()

    def checksum(self) -> str:
        """Of the list of the files, or of the pixels in memory."""
        return self.images.open().checksum

    def facts(self) -> DataFacts | None:
        """Of the whole set, whether or not it is here; of others those of the prepared list; of a stand-in as written.

        None where nothing is known and nothing is here.
        """
        known = self.images.known
        if self.images.standin:
            small = self.images.name in _STANDIN
            whole = {split: count * len(CLASSES) for split, count in TREE.items()}
            return self._facts(_STANDIN.get(self.images.name, whole), 10 if small else len(CLASSES))
        if known and known.sizes:
            return self._facts(known.sizes, known.classes)
        try:
            opened = self.images.open()
        except ReattendError:
            return None
        return self._facts(opened.sizes, len(opened.classes))

    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Gets what can be fetched, lists the files, and reports on classes and files that are no images."""
        self.images.prepare(say, progress)
        opened = self.images.open()
        if self.images.standin:
            say(f"{self.images.name}: stand-in, {' and '.join(f'{n} {split}' for split, n in opened.sizes.items())}")
        else:
            check(self.images, opened, say, progress)

    def _facts(self, sizes: Any, classes: int) -> DataFacts:
        held = round(sizes["train"] * self.held_out)
        channels = self.images.known.channels if self.images.known else 3
        return DataFacts(
            {"image_size": self.image_size, "channels": channels, "num_outputs": classes},
            {"train": sizes["train"] - held, "validation": held, "test": sizes["test"]},
        )
