"""`python train.py`, as a person calls it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import reattend
from reattend.runs.metrics import read_metrics
from reattend.runs.result import read_result
from reattend.runs.status import read_status
from tests.commands.conftest import ROOT, SMALL, Train, run_folders
from tests.runs.processes import HOLD, started


def test_a_run_leaves_a_complete_result_and_a_loadable_model(train_command: Train, tmp_path: Path) -> None:
    done = train_command("attention=bn_sh")
    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(tmp_path)
    assert folder.relative_to(tmp_path).as_posix().startswith("runs/uea/japanese_vowels/bn_sh/uea_encoder/s0-")
    result = read_result(folder)
    assert set(result.metrics) == {"last", "best_on_test"}
    assert result.metrics["last"].epoch == 4
    assert result.metrics["best_on_test"].metrics["test/accuracy"] >= result.metrics["last"].metrics["test/accuracy"]
    assert result.flops is not None
    assert result.training_flops is not None
    assert 2 * result.flops < result.training_flops <= 3 * result.flops
    watched = [row.value for row in read_metrics(folder / "metrics.csv") if row.metric == "test/accuracy"]
    assert watched[-1] == result.metrics["last"].metrics["test/accuracy"]
    assert max(watched) == result.metrics["best_on_test"].metrics["test/accuracy"]
    model = reattend.load(folder, "best")
    assert sum(p.numel() for p in model.parameters()) == result.parameters
    for shown in (
        "last epoch",
        "best on test",
        "parameters",
        str(folder),
        "Next, five seeds: python train.py -m",
        "Not to be compared",
    ):
        assert shown in done.stdout


def test_a_finished_run_is_not_repeated_unless_asked(train: Train, finished_run: Path) -> None:
    folder = finished_run
    written = (folder / "result.json").stat().st_mtime_ns
    again = train()
    assert "rerun=true repeats it" in again.stdout
    assert (folder / "result.json").stat().st_mtime_ns == written
    before = read_result(folder).metrics
    assert train("rerun=true").returncode == 0
    assert (folder / "result.json").stat().st_mtime_ns > written
    assert read_result(folder).metrics == before, "the same configuration gives the same digits"
    (kept,) = folder.glob("before-*/result.json")
    assert read_result(kept.parent).metrics == before


def test_strict_selects_on_validation_and_sees_test_at_the_end_only(train: Train, tmp_path: Path) -> None:
    assert train("protocol=strict").returncode == 0
    (folder,) = run_folders(tmp_path)
    result = read_result(folder)
    assert set(result.metrics) == {"last", "best_on_validation"}
    assert {"test/accuracy", "val/accuracy"} <= set(result.metrics["best_on_validation"].metrics)
    assert not any(row.metric.startswith("test") for row in read_metrics(folder / "metrics.csv"))


def test_a_multirun_goes_on_past_failures_and_names_each(train: Train, tmp_path: Path) -> None:
    done = train("-m", "attention=softmax,bn", "recipe.optimizer.lr=1e-3,1e30")
    assert done.returncode == 1
    states = [status.state for folder in run_folders(tmp_path) if (status := read_status(folder))]
    assert sorted(states) == ["done", "done", "failed", "failed"]
    tail = done.stderr[done.stderr.index("2 run(s) failed") :]
    assert "attention=softmax" in tail
    assert "attention=bn" in tail


def test_a_loss_that_is_not_finite_stops_with_step_and_module_and_keeps_the_checkpoint(
    train: Train, tmp_path: Path
) -> None:
    done = train("recipe.optimizer.lr=1e30", "recipe.optimizer.name=sgd", "trainer.checkpoint_seconds=0")
    assert done.returncode == 2
    assert "epoch" in done.stderr
    assert "step" in done.stderr
    assert "first produced by" in done.stderr
    assert "Traceback" not in done.stderr
    (folder,) = run_folders(tmp_path)
    status = read_status(folder)
    assert status is not None
    assert status.state == "failed"
    assert status.error is not None
    assert status.error["type"] == "NonFiniteError"
    assert not (folder / "result.json").exists()
    kept = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.isfinite(tensor).all() for name, tensor in kept.items() if name.startswith("model."))


def test_a_claimed_folder_is_left_alone(train: Train, finished_run: Path) -> None:
    (finished_run / "status.json").unlink()
    with started(HOLD, finished_run) as process:
        done = train()
    assert done.returncode == 2
    assert str(process.pid) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", [b"not a checkpoint", None], ids=["corrupt", "foreign"])
def test_a_checkpoint_that_is_not_this_runs_is_refused(train: Train, finished_run: Path, content: bytes | None) -> None:
    (finished_run / "status.json").unlink()
    if content is None:
        torch.save({"state_dict": {}}, finished_run / "last.ckpt")
    else:
        (finished_run / "last.ckpt").write_bytes(content)
    done = train()
    assert done.returncode == 2
    assert "last.ckpt" in done.stderr
    assert "rerun=true" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["result.json", "model_best.pt"])
def test_a_finished_run_that_lost_a_file_is_made_whole_from_its_checkpoint(
    train: Train, finished_run: Path, damage: str
) -> None:
    folder = finished_run
    before = read_result(folder)
    if damage == "result.json":
        (folder / damage).write_bytes((folder / damage).read_bytes()[:100])
    else:
        (folder / damage).unlink()
    done = train()
    assert done.returncode == 0, done.stderr
    assert damage in done.stdout
    assert "goes on from its last checkpoint" in done.stdout
    assert read_result(folder).metrics == before.metrics
    assert reattend.load(folder, "best")


def test_a_signal_ends_a_sweep_with_a_word_and_a_code(tmp_path: Path) -> None:
    arguments = [*SMALL, "recipe.epochs=500", f"outputs={tmp_path}", "-m", "seed=0,1"]
    started = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert started.stdout is not None
    assert any("epoch 4/" in line for line in started.stdout)
    started.terminate()
    _, stderr = started.communicate(timeout=120)
    assert started.returncode == 130
    assert "was interrupted; the same command goes on" in stderr
    assert "Traceback" not in stderr
    (folder,) = run_folders(tmp_path)
    status = read_status(folder)
    assert status is not None
    assert status.error is not None
    assert status.error["type"] == "RunInterruptedError"


@pytest.mark.slow
def test_rerun_gets_past_a_damaged_checkpoint(train: Train, finished_run: Path) -> None:
    (finished_run / "status.json").unlink()
    (finished_run / "last.ckpt").write_bytes(b"not a checkpoint")
    assert train("rerun=true").returncode == 0


def test_all_mistakes_come_in_one_message_and_nothing_is_written(train: Train, tmp_path: Path) -> None:
    done = train("attention=bnn", "recipe.epochs=many", "scales=quick")
    assert done.returncode == 2
    for part in ("bnn", "Did you mean 'bn'", "recipe.epochs", "scale=quick"):
        assert part in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["scale.image_size=30"], "image_size: 30 is no multiple of backbone.options.patch_size=4. Nearest: 28 or 32"),
        (["task.data_options.test_sizes=[33]"], "test_sizes: 33 is no multiple"),
        (
            ["attention=aft_full", "task.data_options.test_sizes=[56]"],
            "test_56 cannot be evaluated with this attention",
        ),
    ],
)
def test_a_size_that_cannot_work_is_told_before_training(train: Train, overrides: list[str], told: str) -> None:
    size = [override.replace("task.", "++task.") for override in overrides]
    done = train("task=image/fashion_mnist", "scale=quick", "scale.steps_per_epoch=1", *size)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "epoch 1" not in done.stdout


def test_missing_data_is_told_within_seconds(train_command: Train, tmp_path: Path) -> None:
    start = time.monotonic()
    done = train_command("data=real", "task.dataset=Heartbeat", f"data.root={tmp_path}")
    assert done.returncode == 2
    assert "Heartbeat_TRAIN.ts" in done.stderr
    assert "data=standin" in done.stderr
    assert time.monotonic() - start < 60


def test_help_does_not_import_torch(train_command: Train) -> None:
    done = train_command("--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert "attention" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torch" not in imported


@pytest.mark.slow
@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
def test_loggers_write_into_the_run_and_say_how_to_look(train_command: Train, tmp_path: Path, logger: str) -> None:
    done = train_command(f"logger={logger}", "recipe.epochs=2")
    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(tmp_path)
    assert list(folder.glob(f"{logger}/*"))
    assert (folder / "metrics.csv").exists()
    assert ("tensorboard --logdir" if logger == "tensorboard" else "wandb sync") in done.stdout


def test_an_attention_of_ones_own_in_one_file(train: Train, tmp_path: Path) -> None:
    (tmp_path / "my_attention.py").write_text(MEAN_POOLING)
    done = train(
        "attention=custom",
        "attention.target=my_attention.MeanPooling",
        "attention.options.gate=true",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(tmp_path)
    assert folder.parts[-3] == "custom-MeanPooling"
    assert read_result(folder).parameters > 0


MEAN_POOLING = '''
import torch
from torch import nn
from reattend.attention import Capabilities, Mixer, MixerSpec


class MeanPooling(Mixer):
    """Every token gets the mean over the real tokens."""

    def __init__(self, spec: MixerSpec, *, gate: bool = False) -> None:
        super().__init__()
        self.proj = nn.Linear(spec.dim, spec.dim)
        self.gate = nn.Linear(spec.dim, spec.dim) if gate else None

    @classmethod
    def capabilities(cls, **options: object) -> Capabilities:
        return Capabilities()

    def forward(self, x, padding_mask=None, context=None, context_mask=None):
        weight = torch.ones_like(x[..., :1]) if padding_mask is None else padding_mask[..., None].to(x.dtype)
        mean = (x * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
        y = self.proj(mean).expand_as(x)
        return y if self.gate is None else y * self.gate(x).sigmoid()
'''


def test_two_processes_take_the_steps_of_one_and_reach_its_numbers(train: Train, tmp_path: Path) -> None:
    alike = ["backbone.options.norm=layer", "recipe.dropout=0", "recipe.attention_dropout=0"]
    one = train(*alike, f"outputs={tmp_path}/1")
    two = train(*alike, f"outputs={tmp_path}/2", "trainer=ddp", "trainer.accelerator=cpu")
    assert one.returncode == two.returncode == 0, two.stderr
    results = [read_result(run_folders(tmp_path / name)[0]) for name in ("1", "2")]
    assert results[0].fingerprint == results[1].fingerprint
    assert results[0].metrics["last"].step == results[1].metrics["last"].step
    losses = [result.metrics["last"].metrics["test/loss"] for result in results]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    rows = [read_metrics(run_folders(tmp_path / name)[0] / "metrics.csv") for name in ("1", "2")]
    one_place, two_place = ([(row.epoch, row.step, row.metric) for row in written] for written in rows)
    assert one_place == two_place
