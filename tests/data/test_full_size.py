"""The longest, the widest and the largest set of the ten at full size: memory of reading and of training steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from reattend.data.known_sets import KNOWN_SETS, KnownSet

STEPS = """
import resource, sys
import torch
from reattend.config import compose, read
from reattend.tasks.optimizers import make_optimizer
from reattend.train.execute import build_data, build_task
task, root = sys.argv[1:]
config = read(compose([f"task={task}", "attention=softmax", f"data.root={root}", "recipe.attention_dropout=0"]))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
torch.set_num_threads(1)
start = peak()
data = build_data(config)
loaded = peak()
model = build_task(config, data.shape).model
optimizer = make_optimizer(model, config.recipe.optimizer)
for _, batch in zip(range(2), data.train_dataloader()):
    torch.nn.functional.cross_entropy(model(batch["x"], batch["padding_mask"])[0], batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    batch = next(iter(data.test_dataloader()))
    model(batch["x"], batch["padding_mask"])
print(start, loaded, peak(), data.train.x.numel() + data.test.x.numel())
"""


def lines(known: KnownSet, split: int) -> Iterator[str]:
    """Cases of full size: a few drawn ones, with another first value each."""
    random = np.random.default_rng(split)
    values = random.normal(size=(4, known.channels, known.length))
    drawn = [":".join(",".join(f"{value:.3f}" for value in row) for row in case) for case in values]
    for case in range(known.cases[split]):
        text = drawn[case % 4]
        label = known.class_labels[case % len(known.class_labels)]
        yield f"{case}.0{text[text.index(',') :]}:{label}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "name", "megabytes"),
    [
        ("uea/ethanol_concentration", "EthanolConcentration", 2200),
        ("uea/pems_sf", "PEMS-SF", 1800),
        ("uea/face_detection", "FaceDetection", 1800),
    ],
)
def test_a_set_of_full_size_is_read_and_trained_within_the_stated_memory(
    tmp_path: Path, task: str, name: str, megabytes: int
) -> None:
    known = KNOWN_SETS[name]
    (tmp_path / name).mkdir()
    for split, suffix in enumerate(("TRAIN", "TEST")):
        with (tmp_path / name / f"{name}_{suffix}.ts").open("w") as file:
            file.write(f"@univariate false\n@dimensions {known.channels}\n@equalLength true\n")
            file.write(f"@seriesLength {known.length}\n@classLabel true {' '.join(known.class_labels)}\n@data\n")
            file.writelines(lines(known, split))
    done = subprocess.run([sys.executable, "-c", STEPS, task, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    start, loaded, trained, values = map(int, done.stdout.split())
    print(f"{name}: {start} MB before, {loaded} MB when read, {trained} MB when trained, {values:,} values")
    # Both splits as float32, the values of one file as float64, and a little.
    assert loaded - start < (4 * values + 8 * known.training_values) / 2**20 + 200
    assert trained < megabytes
