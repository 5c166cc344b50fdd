"""Stand-ins: right in shape, the same everywhere, and with something to learn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reattend.data.archive import locate
from reattend.data.known_sets import KNOWN_SETS
from reattend.data.standin import stand_in
from reattend.data.ts_format import read_ts
from reattend.errors import ReattendError

CHECKSUM = "import sys; from reattend.data.standin import stand_in; print(stand_in('PLAID').checksum())"


@pytest.mark.parametrize("name", ["JapaneseVowels", "BasicMotions", "PLAID", "Covid3Month", "FaceDetection"])
def test_has_the_kind_of_the_real_set(name: str) -> None:
    known = KNOWN_SETS[name]
    files = stand_in(name)
    train, test = read_ts(files.train), read_ts(files.test)
    assert files.origin == "stand-in"
    assert len(train.series) <= max(10 * len(known.class_labels), 40, known.cases[0] / 20)
    assert sum(case.size for case in train.series) < 2e6
    for file in (train, test):
        assert file.num_channels == known.channels
        assert file.class_labels == known.class_labels
        assert (len({case.shape[1] for case in file.series}) == 1) == known.equal_length
        assert (file.labels is None) == (not known.class_labels)
        if file.labels is not None:
            assert set(file.labels) == set(known.class_labels)


@pytest.mark.parametrize("name", ["JapaneseVowels", "BasicMotions", "OSULeaf", "ACSF1", "PLAID", "Covid3Month"])
def test_what_is_known_of_a_shipped_set_is_so(tmp_path: Path, name: str) -> None:
    known = KNOWN_SETS[name]
    files = locate(name, known.archive, tmp_path)
    train, test = read_ts(files.train), read_ts(files.test)
    assert (len(train.series), len(test.series)) == known.cases
    assert train.class_labels == known.class_labels
    assert train.num_channels == known.channels
    lengths = {case.shape[1] for case in train.series}
    assert max(lengths) == known.length
    assert (len(lengths) == 1) == known.equal_length


def test_is_the_same_whatever_the_hash_seed_and_with_several_writers(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CHECKSUM],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "XDG_CACHE_HOME": str(tmp_path / cache)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, cache in ((0, "shared"), (1, "shared"), (2, "own"))
    ]
    checksums = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert checksums == {stand_in("PLAID").checksum()}
    assert sorted(path.name for path in (tmp_path / "shared/reattend/standin").iterdir()) == [
        "PLAID_TEST.ts",
        "PLAID_TRAIN.ts",
    ]


def test_mends_a_damaged_file_and_leaves_a_whole_one() -> None:
    files = stand_in("GunPoint")
    checksum, written = files.checksum(), files.test.stat().st_mtime_ns
    files.train.write_text("damaged")
    assert stand_in("GunPoint").checksum() == checksum
    assert files.test.stat().st_mtime_ns == written


@pytest.mark.parametrize("name", ["JapaneseVowels", "BasicMotions", "OSULeaf", "ACSF1", "PLAID", "PenDigits"])
def test_nearest_class_mean_beats_chance(name: str) -> None:
    files = stand_in(name)
    train, test = read_ts(files.train), read_ts(files.test)
    shortest = min(case.shape[1] for case in train.series + test.series)
    x, labels = np.stack([case[:, :shortest] for case in train.series]), np.array(train.labels)
    means = {label: x[labels == label].mean(axis=0) for label in train.class_labels}
    guesses = [
        min(means, key=lambda label: float(np.square(case[:, :shortest] - means[label]).sum())) for case in test.series
    ]
    accuracy = np.mean([guess == label for guess, label in zip(guesses, test.labels, strict=True)])
    assert accuracy > max(0.8, 2 / len(means))


def test_targets_can_be_regressed() -> None:
    files = stand_in("Tecator")
    train, test = read_ts(files.train), read_ts(files.test)
    pattern = np.mean([case[0] * target for case, target in zip(train.series, train.targets, strict=True)], axis=0)
    guesses = [case[0] @ pattern for case in test.series]
    assert np.corrcoef(guesses, test.targets)[0, 1] > 0.95


def test_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(
        ReattendError, match=r"no stand-in for the data set Hartbeat\. Did you mean 'Heartbeat'\?.*PLAID"
    ):
        stand_in("Hartbeat")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ReattendError, match="Set XDG_CACHE_HOME"):
        stand_in("PLAID")
