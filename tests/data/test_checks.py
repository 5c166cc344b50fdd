"""Files that are not what they should be: not a pair, copies of each other, not the archive's."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from reattend.data import TimeSeriesData
from reattend.data.archive import locate
from reattend.data.checks import FileFacts, check_known, check_pair
from reattend.data.known_sets import KNOWN_SETS
from reattend.data.ts_format import read_ts
from reattend.errors import ReattendError

from .conftest import WriteSet


def known_facts(name: str) -> tuple[FileFacts, FileFacts]:
    """Facts of files that are as the set is known to be."""
    known = KNOWN_SETS[name]
    train = FileFacts(
        Path(f"{name}_TRAIN.ts"),
        known.kind,
        known.channels,
        len(known.class_labels),
        known.length,
        known.cases[0],
        b"1",
    )
    return train, replace(train, path=Path(f"{name}_TEST.ts"), cases=known.cases[1], digest=b"2")


def test_a_test_file_that_is_a_copy_of_the_training_file_is_refused(write_set: WriteSet) -> None:
    root = write_set(["1,2:a", "2.50,4:b"], ["1.0,2:a", "2.5,4:b"])
    with pytest.raises(ReattendError, match=r"have the same 2 cases: a model would be tested on what it has learned"):
        TimeSeriesData("Toy", "uea", root=root, batch_size=2, seed=0)


def test_the_digest_knows_where_a_case_ends(write_set: WriteSet) -> None:
    root = write_set(["1,2:a", "3:b"], ["1:a", "2,3:b"])
    train, test = (FileFacts.of(read_ts(root / "Toy" / f"Toy_{split}.ts")) for split in ("TRAIN", "TEST"))
    assert (train.cases, train.length, train.channels, train.classes) == (2, 2, 1, 3)
    check_pair(train, test)


@pytest.mark.parametrize("name", KNOWN_SETS)
def test_files_as_they_are_known_pass(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_known(name, *known_facts(name))


def test_sets_of_other_names_pass() -> None:
    check_known("MyOwnRecording", *known_facts("Heartbeat"))


def test_a_difference_from_what_was_read_in_the_files_is_an_error() -> None:
    train, test = known_facts("JapaneseVowels")
    with pytest.raises(ReattendError) as raised:
        check_known("JapaneseVowels", replace(train, cases=200), replace(test, cases=1))
    for part in ("(training cases: 200, not 270; test cases: 1, not 370)", "task=uea/folder task.dataset=<Name>"):
        assert part in str(raised.value)


def test_a_difference_from_what_is_recalled_is_a_warning() -> None:
    train, test = known_facts("Heartbeat")
    with pytest.warns(UserWarning, match=r"differ from what is known of Heartbeat \(classes: 3, not 2\)"):
        check_known("Heartbeat", replace(train, classes=3), test)


def test_what_sktime_ships_passes(tmp_path: Path) -> None:
    for name in ("JapaneseVowels", "Covid3Month"):
        files = locate(name, KNOWN_SETS[name].archive, tmp_path)
        train, test = FileFacts.of(read_ts(files.train)), FileFacts.of(read_ts(files.test))
        check_pair(train, test)
        check_known(name, train, test)
