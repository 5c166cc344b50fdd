"""Writes results as finished runs would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reattend.config import compose, read, to_dict
from reattend.config.revisions import revisions
from reattend.data.checksum import data_checksum
from reattend.runs.identity import fingerprint, run_folder
from reattend.runs.result import Result, Selected, write_result

TASK = "task=uea/japanese_vowels"


def finished(
    outputs: Path,
    accuracy: float,
    seed: int,
    *overrides: str,
    metrics: Mapping[str, float] | None = None,
    **changes: object,
) -> Result:
    """Writes the result of a run with that accuracy; `changes` are fields of the result."""
    config = read(compose([TASK, f"outputs={outputs}", f"seed={seed}", *overrides]))
    plain, checksum = to_dict(config), data_checksum(config)
    name = fingerprint(plain, checksum, revisions(config))
    numbers = {"test/accuracy": accuracy, "test/loss": 0.1, **(metrics or {})}
    selected = "best_on_test" if config.protocol.name == "published" else "best_on_validation"
    result = Result(
        **{
            "task": config.task.name,
            "attention": config.attention.name,
            "backbone": config.backbone.name,
            "seed": seed,
            "fingerprint": name,
            "scale": config.scale.name,
            "protocol": config.protocol.name,
            "fidelity": plain["fidelity"],
            "data": config.data.name,
            "metrics": {"last": Selected(400, 2000, numbers), selected: Selected(9, 45, numbers)},
            "parameters": 1000,
            "flops": 10,
            "training_flops": 30,
            "seconds": 100.0,
            "peak_memory": 10**9,
            "device": "cpu",
            "versions": {"torch": "2.14"},
            "git_commit": "0" * 40,
            "data_checksums": {"train and test": checksum},
            "config": plain,
        }
        | changes
    )
    folder = run_folder(outputs, plain, name)
    folder.mkdir(parents=True)
    write_result(folder, result)
    return result
