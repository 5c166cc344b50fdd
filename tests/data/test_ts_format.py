"""The reader of `.ts` files: what it accepts, what it refuses, and that it agrees with sktime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reattend.data.archive import locate
from reattend.data.known_sets import KNOWN_SETS
from reattend.data.ts_format import MalformedFileError, read_ts, write_ts
from reattend.errors import ReattendError

HEADER = "@problemName Toy\n@timeStamps false\n@univariate false\n@dimensions 2\n@classLabel true a b\n@data\n"
SHIPPED = ["JapaneseVowels", "BasicMotions", "OSULeaf", "ACSF1", "PLAID", "ArrowHead", "GunPoint", "Tecator"]


def read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "Toy_TRAIN.ts"
    path.write_bytes(text.encode())
    return read_ts(path)


def test_reads_channels_labels_and_line_numbers(tmp_path: Path) -> None:
    file = read(tmp_path, HEADER + "1,2,3:4,5,6:a\n7:8.5e-1:b\n")
    assert [case.tolist() for case in file.series] == [[[1, 2, 3], [4, 5, 6]], [[7], [0.85]]]
    assert file.labels == ["a", "b"]
    assert file.lines == [7, 8]
    assert file.class_labels == ("a", "b")
    assert file.targets is None
    assert file.problem_name == "Toy"


def test_lax_about_blanks_case_comments_and_line_ends(tmp_path: Path) -> None:
    text = (
        "\ufeff# comment\r\n%# another\r\n\r\n@PROBLEMNAME\tToy \r\n@timestamps FALSE\r\n@univariate True\r\n"
        "@ClassLabel True Up down\r\n@Data\r\n# comment\r\n\r\n 1, 2 ,\t3 : up \t\r\n\r\n4,5,6:DOWN\r\n\r\n"
    )
    file = read(tmp_path, text)
    assert [case.tolist() for case in file.series] == [[[1, 2, 3]], [[4, 5, 6]]]
    assert file.labels == ["Up", "down"]
    assert file.lines == [11, 13]


@pytest.mark.parametrize("tag", ["@dimension", "@dimensions"])
def test_both_spellings_of_dimensions(tmp_path: Path, tag: str) -> None:
    file = read(tmp_path, HEADER.replace("@dimensions", tag) + "1,2:3,4:a\n")
    assert file.series[0].shape == (2, 2)
    with pytest.raises(MalformedFileError, match="expected 2 channels"):
        read(tmp_path, HEADER.replace("@dimensions", tag) + "1,2:a\n")


def test_missing_values_are_nan(tmp_path: Path) -> None:
    file = read(tmp_path, HEADER + "1,?,NaN:nan,-2,?:a\n")
    np.testing.assert_array_equal(file.series[0], [[1, np.nan, np.nan], [np.nan, -2, np.nan]])


def test_regression_targets(tmp_path: Path) -> None:
    file = read(tmp_path, "@univariate true\n@targetLabel true\n@data\n1,2:0.5\n3:-1e3\n")
    assert file.labels is None
    assert file.targets.tolist() == [0.5, -1000.0]
    assert file.class_labels == ()


def test_channels_are_counted_where_the_header_does_not_say(tmp_path: Path) -> None:
    text = "@univariate false\n@classLabel true a\n@data\n1:2:3:a\n4:5:a\n"
    with pytest.raises(MalformedFileError, match=r"line 5: expected 3 channels and a label.*found 2 channels"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2:a", "expected 2 channels and a label, separated by ':', found 1 channel."),
        ("1,2:3,4:5,6:a", "found 3 channels"),
        ("1,2:3,4", "expected 2 channels and a label, separated by ':', found 2 channels and no label"),
        ("1,2:3,4:", "expected a label declared in @classLabel (a b), found an empty label"),
        ("1,2:3,4:c", "expected a label declared in @classLabel (a b), found 'c'"),
        ("1,2:3,4,5:a", "expected channels of one length, 2 as in channel 1, found 3 values in channel 2"),
        ("1,2:3,x:a", "expected a finite number, NaN or ?, found 'x' at value 2 of channel 2"),
        ("1,:3,4:a", "found '' at value 2 of channel 1"),
        ("1,2:3,1_0:a", "found '1_0' at value 2 of channel 2"),
        ("1,2:3,inf:a", "found 'inf' at value 2 of channel 2"),
        ("1,2:3,4?:a", "found '4?' at value 2 of channel 2"),
        ("(0,1),(1,2):(0,3),(1,4):a", "found '(0' at value 1 of channel 1"),
        ("@data", "found 0 channels"),
    ],
)
def test_malformed_case_names_file_line_expected_and_found(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(MalformedFileError) as raised:
        read(tmp_path, HEADER + "1,2:3,4:b\n\n" + line + "\n")
    assert f"{tmp_path / 'Toy_TRAIN.ts'}, line 9: expected" in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Toy_TRAIN.ts is empty"),
        (" \n\n", "Toy_TRAIN.ts is empty"),
        ("@classLabel true a\n", "expected a line @data, found none"),
        ("@classLabel true a\n@data\n# nothing\n", "expected at least one case after @data (line 2), found none"),
        ("@timeStamps true\n", "line 1: expected @timeStamps false"),
        ("@missing maybe\n", "line 1: expected true or false, found 'maybe'"),
        ("@dimensions none\n", "line 1: expected a positive whole number, found 'none'"),
        ("@classLabel true\n", "line 1: expected the labels after @classLabel true, found none"),
        ("@classLabel true a A\n", "line 1: expected class labels that differ"),
        ("@classLabel false\n@data\n", "line 2: expected @classLabel true <labels> or @targetLabel true"),
        ("@clasLabel true a\n", "Did you mean '@classLabel'?"),
        ("1,2,3:a\n", "line 1: expected a tag such as @problemName"),
        ("@targetLabel true\n@data\n1,2:a\n", "line 3: expected a finite number as target, found 'a'"),
        ("@targetLabel true\n@data\n1,2:nan\n", "line 3: expected a finite number as target, found 'nan'"),
        ("@equalLength true\n@classLabel true a\n@data\n1,2:a\n1,2,3:a\n", "line 5: expected 2 values per channel"),
        (
            "@equalLength true\n@seriesLength 3\n@classLabel true a\n@data\n1,2:a\n",
            "line 5: expected 3 values per channel, as @equalLength true demands, found 2",
        ),
    ],
)
def test_malformed_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MalformedFileError) as raised:
        read(tmp_path, text)
    assert message in str(raised.value)


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
def test_a_file_that_ends_in_the_middle_of_a_case_was_cut_off(tmp_path: Path, cut: int) -> None:
    whole = "@univariate false\n@equalLength true\n@classLabel true up down\n@data\n1,2:3,4:up\n5,6:7,8:down"
    assert len(read(tmp_path, whole).series) == 2
    with pytest.raises(MalformedFileError, match=r"line 6: .*without a line end: it was probably cut off"):
        read(tmp_path, whole[:-cut])


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"absent\.ts cannot be read: No such file"):
        read_ts(tmp_path / "absent.ts")


@pytest.mark.parametrize("lengths", [(5, 5, 5), (1, 7, 4)])
def test_what_is_written_is_read_back(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    series = [random.standard_normal((3, length)) * 10.0 ** random.integers(-9, 9) for length in lengths]
    series[1][2, 0] = np.nan
    write_ts(tmp_path / "c.ts", series, problem_name="Toy", labels=["b", "a", "b"], class_labels=["a", "b", "c"])
    write_ts(tmp_path / "r.ts", series, problem_name="Toy", targets=[1.0, 1 / 3, -1e-7])
    classes, regression = read_ts(tmp_path / "c.ts"), read_ts(tmp_path / "r.ts")
    for case, written in enumerate(series):
        np.testing.assert_array_equal(classes.series[case], written)
        np.testing.assert_array_equal(regression.series[case], written)
    assert classes.labels == ["b", "a", "b"]
    assert classes.class_labels == ("a", "b", "c")
    assert regression.targets.tolist() == [1.0, 1 / 3, -1e-7]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("split", ["train", "test"])
def test_agrees_with_sktime(tmp_path: Path, name: str, split: str) -> None:
    from sktime.datasets import load_UCR_UEA_dataset

    cases, answers = load_UCR_UEA_dataset(name, split=split, return_X_y=True, return_type="df-list")
    file = read_ts(getattr(locate(name, KNOWN_SETS[name].archive, tmp_path), split))
    assert len(file.series) == len(cases)
    for ours, theirs in zip(file.series, cases, strict=True):
        np.testing.assert_array_equal(ours, theirs.to_numpy().T)
    if file.labels is None:
        np.testing.assert_array_equal(file.targets, np.asarray(answers, dtype=float))
    else:
        assert [label.lower() for label in file.labels] == [str(answer).lower() for answer in answers]
