"""Sizes and shapes of a run's data, without reading it where they are known."""

from __future__ import annotations

from reattend.config.schema import RunConfig
from reattend.data.source import DataFacts, source_of
from reattend.errors import ReattendError


def data_facts(config: RunConfig) -> DataFacts:
    """Of the set of `config`: from what is known of it, else by reading the files.

    Raises:
        ReattendError: the set is not known, and its files are missing or malformed.
    """
    return source_of(config).facts() or _read(config)


def check_enough(config: RunConfig, train_samples: int) -> None:
    """Returns if an epoch has an update.

    Raises:
        ReattendError: the only batch is incomplete and so dropped.
    """
    recipe = config.recipe
    if not recipe.steps(train_samples):
        raise ReattendError(
            f"recipe.batch_size={recipe.batch_size}: {config.task.dataset} has {train_samples:,} samples to train on,"
            f" and an incomplete batch is dropped: recipe.batch_size={train_samples} at most, or"
            " recipe.last_train_batch=kept."
        )


def _read(config: RunConfig) -> DataFacts:
    # Imported here: Lightning takes seconds, and most plans need no reading.
    from reattend.train.execute import build_data

    data = build_data(config)
    return DataFacts(data.shape, {"validation": 0, **data.sizes})
