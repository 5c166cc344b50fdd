"""What the summary of a run says of how it differs from the published ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reattend.config import compose, normalise_overrides, read, to_dict
from reattend.config.groups import members
from reattend.runs.stamps import GENERATED
from reattend.train.stamps import fidelity_changes, stamps

QUICK = "Not to be compared with published numbers: quick scale or stand-in data."


def told(*overrides: str) -> list[str]:
    config = read(compose(overrides))
    result: Any = SimpleNamespace(
        fidelity=to_dict(config)["fidelity"],
        protocol=config.protocol.name,
        scale=config.scale.name,
        data=config.data.name,
    )
    return list(stamps(result, config, normalise_overrides(overrides)))


def choices(scale: str = "paper", data: str = "real", fidelity: str = "published") -> str:
    return f"fidelity={fidelity} protocol=published scale={scale} data={data}"


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([], [choices()]),
        (["attention=bn", "beta.value=0.3", "seed=3", "trainer.threads=1", "outputs=o"], [choices()]),
        (["trainer.precision=bf16-mixed"], [choices(), "not the task's own settings: trainer.precision=bf16-mixed"]),
        (["data=standin"], [choices(data="standin"), QUICK]),
        (["task=lra/pathfinder"], [choices(), GENERATED]),
        (["task=lra/pathfinder", "task.data_options.images=archive"], [choices(), "not the task's own settings: "]),
        (
            ["task=lra/pathfinder", "scale=quick"],
            [choices("quick"), "scale=quick has samples of 256 tokens at most", QUICK, GENERATED],
        ),
        (
            ["task=image_ar/cifar10", "attention=linear", "scale=quick", "scale.image_size=4", "scale.depth=1"],
            [
                choices("quick"),
                "not the task's own settings: scale.image_size=4, scale.depth=1",
                "scale=quick has images of 4 x 4 pixels",
                "scale=quick has 1 layer(s) of width",
                QUICK,
            ],
        ),
        (
            ["task=lra/text", "scale.epochs=2", "scale.steps_per_epoch=3"],
            [choices(), "not the task's own settings: scale.epochs=2, scale.steps_per_epoch=3"],
        ),
        (["recipe.batch_size=3"], [choices(), "not the task's own settings: recipe.batch_size=3"]),
    ],
)
def test_stamps(overrides: list[str], lines: list[str]) -> None:
    found = told(*overrides)
    assert len(found) == len(lines)
    assert all(line.startswith(start) for line, start in zip(found, lines, strict=True))


@pytest.mark.parametrize("task", ["lra/listops", "lra/text", "uea/japanese_vowels"])
@pytest.mark.parametrize("fidelity", members("fidelity"))
def test_single_switches_are_named(task: str, fidelity: str) -> None:
    plain = [f"task={task}", f"fidelity={fidelity}"]
    assert fidelity_changes(read(compose(plain))) == []
    other = {"published": "real", "corrected": "all"}[fidelity]
    changed = [*plain, f"fidelity.lra.mean_over={other}", "fidelity.lra.text_bytes=7"]
    assert fidelity_changes(read(compose(changed))) == ["lra.text_bytes=7", f"lra.mean_over={other}"]


def test_the_summary_names_them() -> None:
    found = told("task=lra/listops", "fidelity.lra.brackets=kept", "fidelity.lra.mean_over=real")
    assert found == [choices(fidelity="published, but lra.brackets=kept, lra.mean_over=real;")]
