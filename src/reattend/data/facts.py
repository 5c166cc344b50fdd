"""Sizes and shapes of a run's data, without reading it where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reattend.config.schema import RunConfig
from reattend.data.known_sets import KNOWN_SETS


@dataclass(frozen=True)
class DataFacts:
    """`shape` is what a backbone is built from, `sizes` the number of samples of "train", "validation" and "test"."""

    shape: Mapping[str, int]
    sizes: Mapping[str, int]


def data_facts(config: RunConfig) -> DataFacts:
    """Of the set of `config`: from what is known of the archive, else by reading the files.

    Raises:
        ReattendError: the set is not known, and its files are missing or malformed.
    """
    known = KNOWN_SETS.get(config.task.dataset or "")
    if known is None or config.data.name == "standin":
        return _read(config)
    train, test = known.cases
    held = round(train * config.protocol.validation_fraction) if config.protocol.selection == "validation" else 0
    return DataFacts(
        {"num_channels": known.channels, "max_length": known.length, "num_outputs": len(known.class_labels) or 1},
        {"train": train - held, "validation": held, "test": test},
    )


def _read(config: RunConfig) -> DataFacts:
    # Imported here: Lightning takes seconds, and most plans need no reading.
    from reattend.train.execute import build_data

    data = build_data(config)
    return DataFacts(data.shape, {"validation": 0, **data.sizes})
