"""The five sets as data sources: prepared arrays with a manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from reattend.config.binding import UNREADABLE, bind_dataclass
from reattend.config.problems import refuse
from reattend.config.schema import RunConfig
from reattend.data.lra.options import Loading
from reattend.data.lra.raw import RawSet
from reattend.data.lra.sets import bound_set, next_command
from reattend.data.lra.standin import write_stand_in
from reattend.data.prepared.arrays import Prepared
from reattend.data.prepared.preparing import opened, prepare, stand_in
from reattend.data.source import DataFacts, DataSource


@dataclass(frozen=True)
class LRASource(DataSource):
    """One set in one reading, real or stand-in.

    Attributes:
        raw: the set.
        standin: whether it is one.
        max_length: tokens that every sample is padded to.
        held_out: fraction of training that a set without development set gives up for one, 0 with selection on test.
        selects_on_test: whether the development set is left alone.
    """

    raw: RawSet
    standin: bool
    max_length: int
    held_out: float
    selects_on_test: bool

    @classmethod
    def from_config(cls, config: RunConfig) -> LRASource:
        """What the task of `config` learns from."""
        options, standin = config.task.data_options, config.data.name == "standin"
        of_loading = {field.name for field in fields(Loading)} & {*options}
        problems: list[str] = []
        loading = bind_dataclass(Loading, {name: options[name] for name in of_loading}, "task.data_options", problems)
        own = {name: value for name, value in options.items() if name not in of_loading}
        raw = bound_set(config.task.dataset, config.data.root, own, problems, standin=standin)
        if raw is not None and loading is not UNREADABLE:
            # Quick runs see the first rows of a picture only, and say so.
            problems += raw.length_problems(loading.max_length, whole=config.scale.name == "paper")
        refuse(problems, next_command(config.task.dataset))
        assert raw is not None
        on_test = config.protocol.selection == "test"
        return cls(raw, standin, loading.max_length, config.protocol.validation_fraction, on_test)

    @staticmethod
    def options(config: RunConfig) -> dict[str, Any]:
        """The options of the task's data."""
        return dict(config.task.data_options)

    def require(self) -> None:
        """Opens the prepared arrays."""
        self._open()

    def checksum(self) -> str:
        """That of the manifest."""
        return self._open().checksum

    def facts(self) -> DataFacts:
        """Of the whole set, whether or not it is here; of a stand-in those of its manifest."""
        sizes = self._open().sizes if self.standin else dict(self.raw.full_sizes)
        return DataFacts(self.raw.shape(self.max_length), self._used(sizes))

    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Makes the prepared arrays, or verifies them."""
        if self.standin:
            say(f"lra/{self.raw.name}: stand-in, {self._open().folder}")
        else:
            prepare(self.raw, say, progress)

    def _open(self) -> Prepared:
        return stand_in(self.raw, write_stand_in) if self.standin else opened(self.raw)

    def _used(self, sizes: dict[str, int]) -> dict[str, int]:
        if self.selects_on_test:
            return {**sizes, "validation": 0}
        if "validation" in sizes:
            return sizes
        held = round(sizes["train"] * self.held_out)
        return {**sizes, "train": sizes["train"] - held, "validation": held}
