"""Options of the sets: refused by value, with the valid ones, before data is looked for; and lengths that fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest

from reattend.config import check_run, compose, read
from reattend.config.problems import ConfigError
from reattend.data import LRAData
from reattend.data.lra.options import Loading
from reattend.data.lra.sets import SETS, raw_set
from reattend.data.prepare import main
from reattend.data.source import source_of

WRONG = [
    ("listops", "brackets=keptt", r"'keptt' is not one of kept, dropped\. Did you mean 'kept'"),
    ("listops", "lengths=[50,20]", r"nothing fits between 50 and 20"),
    ("listops", "lengths=[50]", r"expected 2 values, found 1"),
    ("pathfinder", "images=archve", r"'archve' is not one of generated, archive\. Did you mean 'archive'"),
    ("pathfinder", "contour_length=7", r"7 is not one of 6, 9, 14"),
    ("pathfinder", "resolution=48", r"48 is not one of 32, 64, 128, 256"),
    ("pathfinder", "resolution=64", r"generated with 32 or 128 pixels a side, not 64.*images=archive"),
    ("pathfinder", "black_pixels=maskd", r"'maskd' is not one of padding, pixels"),
    ("pathfinder", "max_length=1023", r"1,023 tokens of lra/pathfinder.* 1,024 pixels: at least 1024, or scale=quick"),
    ("image", "max_length=900", r"900 tokens of lra/image, .*at least 1024"),
    ("image", "last_test_batch=keep", r"'keep' is not one of dropped, kept\. Did you mean 'kept'"),
    ("text", "max_length=0", r"expected int at least 1, found 0"),
    ("text", "max_length=-3", r"expected int at least 1, found -3"),
    ("text", "text_bytes=0", r"expected int at least 1, found 0"),
    ("text", "text_bytes=4097", r"expected int at most 4096, found 4097"),
    ("text", "max_length=4097", r"4,097 tokens of lra/text.* 4,096 bytes are stored: at most 4096"),
    ("retrieval", "max_length=8192", r"8,192 tokens of lra/retrieval.*at most 4096"),
    ("text", "pad_to=longest", r"'longest' is not one of max_length, batch"),
]
# What one of the options alone does not say is wrong, only the set with all of them.
OF_SEVERAL = ("nothing fits", "generated with", "tokens of")


@pytest.mark.parametrize("data", ["real", "standin"])
@pytest.mark.parametrize(("name", "option", "told"), WRONG)
def test_a_wrong_value_is_refused_with_the_valid_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: str, name: str, option: str, told: str
) -> None:
    overrides = [f"task=lra/{name}", f"task.data_options.{option}", f"data={data}", f"data.root={tmp_path}"]
    config = read(compose(overrides))
    with pytest.raises(ConfigError, match=rf"^1 mistake[^-]*- task\.data_options\.\w+: .*{told}") as raised:
        source_of(config)
    assert f"python train.py task=lra/{name} --cfg job" in str(raised.value)
    if not any(word in told for word in OF_SEVERAL):
        with pytest.raises(ConfigError, match=rf"^1 mistake[^-]*- task\.data_options\.\w+: .*{told}"):
            check_run(config)
    assert main(overrides) == 2
    assert capsys.readouterr().err.startswith("1 mistake in the configuration:")
    assert list(tmp_path.iterdir()) == []


def test_all_wrong_values_are_told_together() -> None:
    wrong = ["max_length=0", "images=archve", "contour_length=7", "bracket=kept"]
    with pytest.raises(ConfigError, match=r"^4 mistakes"):
        source_of(read(compose(["task=lra/pathfinder", *(f"task.data_options.{option}" for option in wrong)])))


def test_the_data_module_takes_what_is_checked_for_it() -> None:
    hints = get_type_hints(LRAData.__init__, include_extras=True)
    checked = get_type_hints(Loading, include_extras=True)
    assert {name: hints[name] for name in checked} == checked
    for kind in SETS.values():
        for name, hint in get_type_hints(kind, include_extras=True).items():
            assert name not in hints or hints[name] == (hint | None)


def test_documents_are_not_cut_in_silence() -> None:
    with pytest.raises(ConfigError, match="at most 4096"):
        LRAData("text", root="absent", batch_size=2, seed=0, max_length=5000, standin=True)


@pytest.mark.parametrize(
    ("overrides", "text_bytes", "max_length"),
    [
        (["recipe=nystromformer"], 1000, 1024),
        (["recipe=nystromformer", "fidelity=corrected"], 4000, 4096),
        (["recipe=nystromformer", "fidelity.lra.text_bytes=4000"], 4000, 4096),
        (["recipe=nystromformer", "fidelity=corrected", "task.data_options.text_bytes=1000"], 1000, 1024),
        ([], 4000, 4096),
        (["fidelity=corrected"], 4000, 4096),
        (["recipe=nystromformer", "scale=quick"], 1000, 256),
    ],
)
def test_a_review_fits_whatever_is_read_of_it(overrides: list[str], text_bytes: int, max_length: int) -> None:
    options = read(compose(["task=lra/text", *overrides])).task.data_options
    assert (options["text_bytes"], options["max_length"]) == (text_bytes, max_length)


@pytest.mark.parametrize(
    ("overrides", "max_length"),
    [
        ([], 1024),
        (["task.data_options.resolution=128"], 16384),
        (["task.data_options.resolution=64", "task.data_options.images=archive"], 4096),
        (["task.data_options.resolution=256", "task.data_options.images=archive"], 65536),
        (["scale=quick"], 256),
        (["scale=quick", "task.data_options.resolution=128"], 256),
    ],
)
def test_a_picture_is_read_whole_unless_quick(overrides: list[str], max_length: int) -> None:
    facts = source_of(read(compose(["task=lra/pathfinder", *overrides]))).facts()
    assert facts is not None
    assert facts.shape["max_length"] == max_length


@pytest.mark.parametrize("name", SETS)
def test_defaults_of_a_set_are_those_of_its_task(tmp_path: Path, name: str) -> None:
    """The command that prepares a set leaves them out."""
    source: Any = source_of(read(compose([f"task=lra/{name}", f"data.root={tmp_path}"])))
    usual = raw_set(name, tmp_path)
    differing = {field for field in vars(usual) if getattr(usual, field) != getattr(source.raw, field)}
    assert differing <= set(usual.switches)
