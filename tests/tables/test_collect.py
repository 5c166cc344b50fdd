"""From result files to the evidence of a page."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from reattend.config.schema import RunConfig
from reattend.errors import ReattendError
from reattend.runs.identity import fingerprint
from reattend.runs.result import Result, write_result
from reattend.tables import results
from reattend.tables.aggregate import mean_over_columns
from reattend.tables.cells import compose_cell
from reattend.tables.collect import collect_evidence
from reattend.tables.evidence import Evidence
from reattend.tables.request import read_request
from reattend.tables.results import load_results
from reattend.tables.table import Place
from tests.tables.finished import TASK, finished

TABLE = """
title: Two rows
paper: a paper, Table 0
average: 3 runs
seeds: 3
values:
  accuracy: {metric: test/accuracy, better: higher, unit: "%", margin: 1.0}
  last: {metric: test/accuracy, better: higher, unit: "%", selection: last}
  memory: {metric: peak_memory, better: lower, unit: GB, relative_to: softmax, margin: 0.05}
rows:
  softmax: {overrides: [attention=softmax]}
  bn: {overrides: [attention=bn]}
columns:
  Vowels: {overrides: [task=uea/japanese_vowels]}
mean: Average
published:
  - value: accuracy
    certainty: read
    source: page 1
    numbers: {softmax: {Vowels: 98.0}, bn: {Vowels: 95.0}}
  - value: memory
    certainty: read
    source: page 2
    numbers: {softmax: {Vowels: 10.0}, bn: {Vowels: 5.0}}
claims:
  better:
    text: bn is above softmax
    certainty: read
    source: page 1
    left: {row: bn, column: Vowels, value: accuracy}
    right: {row: softmax, column: Vowels, value: accuracy}
    at_least: 0.0
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(TABLE)
    return path


def evidence(table: Path, *more: str) -> Evidence:
    return collect_evidence(read_request([f"table={table}", f"outputs={table.parent}", *more]))


def runs(table: Path, *overrides: str, count: int = 3, **changes: object) -> None:
    for seed in range(count):
        finished(table.parent, 0.979 + 0.001 * seed, seed, *overrides, **changes)  # type: ignore[arg-type]


def test_a_cell_is_the_mean_over_its_seeds_beside_the_published_number(table: Path) -> None:
    runs(table, "attention=softmax")
    runs(table, "attention=bn")
    found = evidence(table)
    softmax = found.places[Place("softmax", "Vowels", "accuracy")]
    assert softmax.measured is not None
    assert (softmax.measured.mean, softmax.measured.std) == (pytest.approx(98.0), pytest.approx(0.1))
    assert softmax.verdict == "reproduced"
    assert found.places[Place("bn", "Vowels", "accuracy")].verdict == "different"
    assert found.places[Place("bn", "Average", "accuracy")].measured is not None
    assert found.claims[0].verdict == "undecided"
    assert len(found.found) == 6
    assert [run.state for run in found.runs] == ["done"] * 6


def test_only_runs_of_the_cells_own_configuration_count(table: Path) -> None:
    wanted = finished(table.parent, 0.98, 0)
    for override in ("recipe.epochs=7", "fidelity=corrected", "scale=quick", "attention=sh", "protocol=strict"):
        finished(table.parent, 0.5, 0, override)
    measured = evidence(table).places[Place("softmax", "Vowels", "accuracy")].measured
    assert measured is not None
    assert [run.result for run in measured.runs] == [wanted]


def test_hardware_figures_are_compared_as_ratios_on_one_device(table: Path) -> None:
    runs(table, "attention=softmax", peak_memory=4 * 10**9)
    runs(table, "attention=bn", peak_memory=2 * 10**9)
    found = evidence(table)
    ratio = found.places[Place("bn", "Vowels", "memory")]
    assert ratio.measured is not None
    assert ratio.measured.mean == pytest.approx(2.0)
    assert ratio.compared == pytest.approx((0.5, 0.5))
    assert ratio.effect == pytest.approx(1.0)
    assert ratio.verdict == "reproduced"
    assert found.places[Place("softmax", "Vowels", "memory")].why == "the others are divided by it"


def test_figures_of_two_devices_are_not_compared(table: Path) -> None:
    runs(table, "attention=softmax", device="one")
    runs(table, "attention=bn", device="another")
    found = evidence(table)
    ratio = found.places[Place("bn", "Vowels", "memory")]
    assert ratio.verdict == "not compared"
    assert "another, one" in ratio.why
    assert any("mixed devices" in stamp for stamp in found.stamps)


@pytest.mark.parametrize("override", ["scale=quick", "data=standin"])
def test_small_runs_are_never_compared(table: Path, override: str) -> None:
    runs(table, "attention=softmax", override)
    runs(table, "attention=bn", override)
    found = evidence(table, override)
    assert not found.comparable
    assert {place.verdict for place in found.places.values()} == {"not compared"}
    assert not found.claims
    assert any(override in stamp for stamp in found.stamps)


def test_too_few_seeds_and_missing_numbers_are_told(table: Path) -> None:
    runs(table, "attention=softmax", count=2)
    found = evidence(table)
    assert found.places[Place("softmax", "Vowels", "accuracy")].why == "2 of at least 3 seeds"
    assert found.places[Place("softmax", "Vowels", "last")].why == "no published number is known"
    assert found.places[Place("bn", "Vowels", "accuracy")].why == "no finished run"
    assert [run.state for run in found.runs].count("to do") == 4


def test_a_damaged_result_is_named_and_the_rest_counts(table: Path) -> None:
    runs(table, "attention=softmax")
    path = next(table.parent.rglob("s1-*/result.json"))
    path.write_text(path.read_text()[:100])
    found = evidence(table)
    measured = found.places[Place("softmax", "Vowels", "accuracy")].measured
    assert measured is not None
    assert sorted(measured.by_seed) == [0, 2]
    assert len(found.damaged) == 1
    assert str(path) in found.damaged[0]


def test_the_strict_protocol_takes_the_epoch_that_validation_chose(table: Path) -> None:
    runs(table, "attention=softmax", "protocol=strict")
    found = evidence(table, "protocol=strict")
    measured = found.places[Place("softmax", "Vowels", "accuracy")].measured
    assert measured is not None
    assert len(measured.by_seed) == 3
    assert not any("upper bounds" in stamp for stamp in found.stamps)
    assert any(stamp.startswith("protocol=strict: ") for stamp in found.stamps)


def test_mixed_commits_are_flagged(table: Path) -> None:
    runs(table, "attention=softmax")
    runs(table, "attention=bn", git_commit="1" * 40 + "+changes")
    stamps = evidence(table).stamps
    assert any(stamp.startswith("mixed commits") for stamp in stamps)
    assert any("not committed" in stamp for stamp in stamps)


def test_results_that_were_exported_count(table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results, "EXPORTED", tmp_path / "results" / "runs")
    for seed in range(3):
        finished(tmp_path / "results", 0.98, seed, f"outputs={table.parent}")
    measured = evidence(table).places[Place("softmax", "Vowels", "accuracy")].measured
    assert measured is not None
    assert len(measured.by_seed) == 3


def test_only_wanted_seeds_count(table: Path) -> None:
    runs(table, "attention=softmax", count=5)
    measured = evidence(table, "seeds=3").places[Place("softmax", "Vowels", "accuracy")].measured
    assert measured is not None
    assert sorted(measured.by_seed) == [0, 1, 2]


def test_a_metric_that_is_no_number_is_a_damaged_file(table: Path) -> None:
    runs(table, "attention=softmax", count=1)
    path = next(table.parent.rglob("result.json"))
    path.write_text(path.read_text().replace('"test/accuracy": 0.979', '"test/accuracy": "high"'))
    assert "test/accuracy of" in evidence(table).damaged[0]


def test_a_number_that_is_not_finite_is_named_and_left_out(table: Path) -> None:
    runs(table, "attention=softmax", count=2)
    finished(table.parent, float("nan"), 2)
    place = evidence(table).places[Place("softmax", "Vowels", "accuracy")]
    assert place.measured is not None
    assert sorted(place.measured.by_seed) == [0, 1]
    assert place.left_out == "seed 2: test/accuracy is nan"


def test_a_claim_on_hardware_is_not_judged_across_devices(table: Path) -> None:
    claim = """  lighter:
    text: bn takes less memory
    certainty: read
    source: page 1
    left: {row: bn, column: Vowels, value: memory}
    right: {row: softmax, column: Vowels, value: memory}
    by: ratio
    at_most: 1.0
"""
    table.write_text(table.read_text() + claim)
    runs(table, "attention=softmax", device="one", peak_memory=4 * 10**9)
    runs(table, "attention=bn", device="another", peak_memory=10**9)
    (_, lighter) = evidence(table).claims
    assert lighter.verdict == "not compared"
    assert "different devices" in lighter.why


def test_a_ratio_has_bounds_above_zero(table: Path) -> None:
    table.write_text(table.read_text().replace("at_least: 0.0", "by: ratio\n    at_least: 0.0"))
    with pytest.raises(ReattendError, match="above 0"):
        evidence(table)


def of_other_data(found: Result, checksum: str) -> None:
    """Gives the run the identity that it has on data of that checksum."""
    (folder,) = Path(found.config["outputs"]).rglob(f"*{found.fingerprint}")
    name = fingerprint(found.config, checksum, {})
    new = folder.with_name(f"s{found.seed}-{name}")
    folder.rename(new)
    write_result(new, dataclasses.replace(found, fingerprint=name, data_checksums={"train and test": checksum}))


def test_runs_on_other_data_are_left_out_and_named(table: Path) -> None:
    for row in ("softmax", "bn"):
        for seed in (0, 1, 2):
            of_other_data(finished(table.parent, 0.5, seed, f"attention={row}"), "deadbeef" * 8)
    runs(table, "attention=softmax", count=2)
    found = evidence(table)
    told = "3 runs on other data (checksum deadbeefdead) left out"
    absent = found.places[Place("bn", "Vowels", "accuracy")]
    assert (absent.measured, absent.why) == (None, f"no finished run; {told}")
    place = found.places[Place("softmax", "Vowels", "accuracy")]
    assert place.measured is not None
    assert place.measured.by_seed == pytest.approx({0: 97.9, 1: 98.0})
    assert (place.why, place.left_out) == ("2 of at least 3 seeds", told)
    assert "6 runs on other data (checksum deadbeefdead) left out" in found.stamps
    assert len(found.found) == 2


def test_without_the_data_the_newest_runs_data_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for checksum, age in (("b" * 64, 10), ("a" * 64, 20)):
        for seed in (0, 1):
            of_other_data(finished(tmp_path, 0.9, seed), checksum)
        for path in tmp_path.rglob("result.json"):
            if checksum in path.read_text():
                os.utime(path, (1e9 - age, 1e9 - age))

    def absent(config: RunConfig) -> str:
        raise ReattendError("not on this machine")

    monkeypatch.setattr("reattend.tables.results.data_checksum", absent)
    same, others = load_results([tmp_path]).of(compose_cell("softmax", "Vowels", (TASK,)))
    assert [(run.result.seed, run.checksum) for run in same] == [(0, "b" * 64), (1, "b" * 64)]
    assert [(run.result.seed, run.checksum) for run in others] == [(0, "a" * 64), (1, "a" * 64)]


def test_a_mean_over_columns_names_what_it_drops_and_what_it_lacks(table: Path) -> None:
    text = table.read_text().replace(
        "mean: Average", "  Other: {overrides: [task=uea/japanese_vowels, recipe.epochs=7]}\nmean: Average"
    )
    table.write_text(text.replace("left: {row: bn, column: Vowels", "left: {row: bn, column: Average"))
    runs(table, "attention=softmax", count=3)
    runs(table, "attention=softmax", "recipe.epochs=7", count=2)
    runs(table, "attention=bn", count=1)
    found = evidence(table)
    mean = found.places[Place("softmax", "Average", "accuracy")]
    assert mean.measured is not None
    assert sorted(mean.measured.by_seed) == [0, 1]
    assert mean.left_out == "the mean leaves out seed 2, not in Other"
    (claim,) = found.claims
    assert claim.why == "bn on Average: a mean over all 2 columns, of which 1 has no number: Other"
    cells = {place: known.measured for place, known in found.places.items() if known.measured}
    _, why = mean_over_columns(found.request.table, "softmax", "accuracy", cells, ["Vowels"])
    assert why == "a mean over all 2 columns, of which 1 is not on this page"
