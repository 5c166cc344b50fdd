"""ListOps: the rule's distribution, the same files everywhere, and answers that another evaluator confirms."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from reattend.data.lra.generated import RECORD
from reattend.data.lra.listops import FILES, ListOpsRule, draw_tree, generate_listops
from reattend.data.lra.listops_tokens import VOCABULARY, check_answers, evaluate, read_listops
from reattend.errors import ReattendError

SHORT = ListOpsRule(min_length=20, max_length=60)
GENERATE = """
import sys
from reattend.data.lra.listops import ListOpsRule, generate_listops
if __name__ == "__main__":
    generate_listops(sys.argv[1], (300, 20, 20), ListOpsRule(20, 60), workers=2)
"""


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES.values()]


def answer(source: str) -> int:
    """The answer by Python's own parser: another reading of the text than ours, with NumPy's median."""
    text = source.replace("(", " ").replace(")", " ")
    for name in ("MIN", "MAX", "MED", "SM"):
        text = text.replace(f"[{name} ", f"['{name}' ")
    tree = ast.literal_eval(",".join(text.split()))

    def value(node: object) -> int:
        if isinstance(node, int):
            return node
        assert isinstance(node, list)
        values = [value(child) for child in node[1:]]
        return {
            "MIN": lambda: min(values),
            "MAX": lambda: max(values),
            "MED": lambda: int(np.median(values)),
            "SM": lambda: int(np.sum(values)) % 10,
        }[node[0]]()

    return value(tree)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listops")
    generate_listops(folder, (300, 20, 20), SHORT, workers=1)
    return folder


def rows(path: Path) -> list[tuple[str, int]]:
    lines = path.read_bytes().decode().split("\r\n")
    assert lines[0] == "Source\tTarget"
    assert lines[-1] == ""
    return [(line.split("\t")[0], int(line.split("\t")[1])) for line in lines[1:-1]]


def test_is_of_the_original_form_with_true_answers_and_no_sample_twice(short: Path) -> None:
    samples = [row for name in FILES.values() for row in rows(short / name)]
    assert [len(rows(short / name)) for name in FILES.values()] == [300, 20, 20]
    assert len({source for source, _ in samples}) == len(samples)
    for source, target in samples:
        assert answer(source) == target
        length = sum(word not in "()" for word in source.split())
        assert SHORT.min_length < length < SHORT.max_length


def test_an_operator_takes_its_arguments_one_after_the_other() -> None:
    chosen = iter([0.1, 0.3, 0.05, 0.9, 0.3, 0.9, 0.45])  # an operator, MAX, two arguments, the digits 3 and 4
    assert draw_tree(lambda: next(chosen), ListOpsRule(0, 10)) == ("( ( ( [MAX 3 ) 4 ) ] )", 4)


def test_is_the_same_whatever_the_hash_seed_and_the_number_of_processes(short: Path, tmp_path: Path) -> None:
    script = tmp_path / "generate.py"
    script.write_text(GENERATE)
    environment = {**os.environ, "PYTHONHASHSEED": "17"}
    subprocess.run([sys.executable, script, tmp_path / "two"], env=environment, check=True)
    assert digests(tmp_path / "two") == digests(short)


def test_the_stream_of_samples_stays_as_it_is(short: Path) -> None:
    # A change here changes every run's data: raise the format number of what is prepared.
    assert digests(short)[1] == "7736786fe1ffb0d3a84c31a1e0eb3dd6d9d94c5c5028182c72804f6bc639ba9a"


def test_another_seed_gives_other_samples(short: Path, tmp_path: Path) -> None:
    generate_listops(tmp_path, (30, 2, 2), SHORT, seed=1, workers=1)
    assert not set(rows(tmp_path / "basic_train.tsv")) & set(rows(short / "basic_train.tsv"))


def test_is_not_made_twice_and_made_anew_where_cut_off(tmp_path: Path) -> None:
    def make() -> None:
        generate_listops(tmp_path, (30, 2, 2), SHORT, workers=1)

    make()
    train = tmp_path / "basic_train.tsv"
    whole, made = train.read_bytes(), train.stat().st_mtime_ns
    make()
    assert train.stat().st_mtime_ns == made
    train.write_bytes(whole[:1000])
    make()
    assert train.read_bytes() == whole
    assert {path.name for path in tmp_path.iterdir()} == {*FILES.values(), RECORD}


def test_a_persons_files_and_other_options_are_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "basic_val.tsv").write_text("Source\tTarget\n")
    with pytest.raises(ReattendError, match=r"basic_val.tsv was not generated here"):
        generate_listops(theirs, (30, 2, 2), SHORT, workers=1)
    generate_listops(tmp_path / "ours", (30, 2, 2), SHORT, workers=1)
    with pytest.raises(ReattendError, match=r"other options: max_length=60 where 50 is wanted"):
        generate_listops(tmp_path / "ours", (30, 2, 2), ListOpsRule(20, 50), workers=1)


def test_impossible_wishes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reattend.data.lra.listops._BARREN_BLOCKS", 3)
    with pytest.raises(ReattendError, match="nothing fits between 5 and 6"):
        ListOpsRule(5, 6)
    with pytest.raises(ReattendError, match="no more than about 10 different samples, and 14 are wanted"):
        generate_listops(tmp_path, (10, 2, 2), ListOpsRule(0, 2), workers=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("brackets", ["kept", "dropped"])
def test_tokens_are_the_words_of_the_text(short: Path, brackets: str) -> None:
    samples = read_listops(short / "basic_train.tsv", brackets)
    words = [source.split() for source, _ in rows(short / "basic_train.tsv")]
    dropped = {"(", ")"} | ({"]"} if brackets == "dropped" else set())
    expected = [[VOCABULARY[word] for word in source if word not in dropped] for source in words]
    found = [part.tolist() for part in np.split(samples.tokens, samples.offsets[1:-1])]
    assert found == expected
    assert samples.labels.tolist() == [target for _, target in rows(short / "basic_train.tsv")]
    assert samples.tokens.dtype == np.uint8
    assert 0 not in samples.tokens


def test_reads_over_the_borders_of_chunks_and_without_carriage_returns(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_listops(short / "basic_train.tsv")
    unix = tmp_path / "unix.tsv"
    unix.write_bytes((short / "basic_train.tsv").read_bytes().replace(b"\r\n", b"\n"))
    for chunk in (300, 4099, 1 << 25):
        monkeypatch.setattr("reattend.data.lra.listops_tokens._CHUNK", chunk)
        for path in (short / "basic_train.tsv", unix):
            found = read_listops(path)
            for name in ("tokens", "offsets", "labels"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("( ( ( [MAX 3 ) 14 ) ] )\t3", 3),
        ("( ( ( [FIRST 3 ) 4 ) ] )\t3", 3),
        ("( ( ( [SMIN 3 ) 4 ) ] )\t3", 3),
        ("( ( ( [M 3 ) 4 ) ] )\t3", 3),
        ("( ( ( [MAX 3 ) 4 ) ] ) 3", 3),
        ("( ( ( [MAX 3 ) 4 ) ] )\t", 3),
        ("( ( ( [MAX 3 ) 4 ) ] )\t12", 3),
        ("( ( ( [MAX  3 ) 4 ) ] )\t3", 3),
        ('"( ( ( [MAX 3 ) 4 ) ] )"\t3', 3),
        ("", 3),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path: Path, line: str, number: int) -> None:
    path = tmp_path / "basic_val.tsv"
    path.write_text(f"Source\tTarget\n5\t5\n{line}\n7\t7\n")
    with pytest.raises(ReattendError, match=rf"line {number} is not a ListOps sample"):
        read_listops(path)


def test_a_file_that_is_cut_off_missing_or_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "basic_val.tsv"
    path.write_text("Source\tTarget\n5\t5\n( ( ( [MAX")
    with pytest.raises(ReattendError, match="line 3 has no end: the file is cut off"):
        read_listops(path)
    path.write_text("5\t5\n")
    with pytest.raises(ReattendError, match="the first line must be"):
        read_listops(path)
    with pytest.raises(ReattendError, match=r"absent\.tsv cannot be read"):
        read_listops(tmp_path / "absent.tsv")
    with pytest.raises(ReattendError, match=r"Unknown brackets='keep'.*Did you mean 'kept'"):
        read_listops(path, "keep")


def test_a_wrong_answer_is_named_with_its_line(short: Path, tmp_path: Path) -> None:
    check_answers(read_listops(short / "basic_val.tsv"), "basic_val.tsv")
    path = tmp_path / "basic_val.tsv"
    path.write_text("Source\tTarget\n5\t5\n( ( ( [MAX 3 ) 4 ) ] )\t3\n")
    with pytest.raises(ReattendError, match="line 3 has the value 4, not 3"):
        check_answers(read_listops(path), path)
    path.write_text("Source\tTarget\n( ( ( [MAX 3 ) 4 )\t4\n")
    with pytest.raises(ReattendError, match="line 2 is not a whole expression"):
        check_answers(read_listops(path), path)


@pytest.mark.parametrize("words", ["[MAX ]", "3 4", "]", "[MIN 3", "[MIN 3 ] ]"])
def test_what_is_no_whole_expression_has_no_value(words: str) -> None:
    assert evaluate(bytes(VOCABULARY[word] for word in words.split())) is None


def test_only_the_shorter_and_the_longer_trees_are_left_out() -> None:
    wide, narrow = ListOpsRule(0, 10_000), ListOpsRule(5, 200)
    drawn = [(draw_tree(Random(seed).random, wide), draw_tree(Random(seed).random, narrow)) for seed in range(500)]
    for sample, kept in drawn:
        assert sample is not None
        length = sum(word not in "()" for word in sample[0].split())
        assert kept == (sample if 5 < length < 200 else None)


@pytest.mark.slow
def test_the_distribution_is_that_of_the_rule() -> None:
    uniform, rule, trees = Random(5).random, ListOpsRule(), 30_000
    samples = [sample for sample in (draw_tree(uniform, rule) for _ in range(trees)) if sample is not None]
    # Recorded over 29,532 accepted samples of the original; tolerances of four standard errors of ours.
    assert len(samples) / trees == pytest.approx(0.083, abs=4 * np.sqrt(0.083 * 0.917 / trees) + 0.0005)
    values = np.bincount([value for _, value in samples], minlength=10) / len(samples)
    assert values[[0, 9]] == pytest.approx([0.168, 0.169], abs=4 * np.sqrt(0.168 * 0.832 / len(samples)) + 0.002)
    slack = 4 * np.sqrt(0.08 * 0.92 / len(samples)) + 0.002
    assert (values[1:9] > 0.073 - slack).all()
    assert (values[1:9] < 0.091 + slack).all()
    words = [[word for word in source.split() if word not in "()"] for source, _ in samples]
    assert np.median([len(sample) for sample in words]) == pytest.approx(959, abs=25)
    for sample in words:
        depth = np.cumsum([word.startswith("[") - (word == "]") for word in sample])
        assert depth.max() + 1 == 10
