"""What a table would take."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from reattend.backbones import build_backbone
from reattend.config import compose, read
from reattend.efficiency.flops import count_flops
from reattend.efficiency.model_cost import model_cost
from reattend.runs.environment import cpu_model
from reattend.tables import cell_cache
from reattend.tables.cells import Cell
from reattend.tables.cost import RunCost, run_cost
from reattend.tables.plan import CPU, DEVICES, MEASURED, CellPlan, Plan, plan
from reattend.tables.plan_page import blocks, show
from reattend.tables.request import read_request
from reattend.tables.runs import State, TableRun
from reattend.train.execute import build_data
from tests.tables.finished import TASK, finished

SMALL = ["table=primal_dual/table1", "rows=softmax,bn_sh", "columns=JapaneseVowels,Heartbeat", "seeds=2"]
ONE = ["table=primal_dual/table1", "rows=softmax", "columns=JapaneseVowels", "seeds=2"]


@pytest.mark.parametrize(
    "attention", ["softmax", "bn_sh", "sparse", "performer", "reformer", "primal_plus", "aft_conv"]
)
def test_costs_without_computing_are_those_that_are_counted(attention: str) -> None:
    config = read(compose([TASK, f"attention={attention}", "scale=quick"]))
    torch.manual_seed(0)
    model = build_backbone(config, {"num_channels": 3, "max_length": 21, "num_outputs": 4})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    flops = [count_flops(model, model.example(), backward=backward) for backward in (False, True)]  # type: ignore[operator]
    computed = model_cost(model, model.example, compute=True)  # type: ignore[arg-type]
    cost = model_cost(model, model.example)  # type: ignore[arg-type]
    assert [cost.flops, cost.training_flops] == flops
    assert cost.parameters == parameters
    assert cost == computed  # what the forward pass keeps, too


def test_kept_activations_are_those_of_a_real_forward_pass() -> None:
    layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)]
    model = torch.nn.Sequential(*layers)
    cost = model_cost(model, lambda: {"input": torch.zeros(3, 8)})
    # The input, and what GELU and the last layer keep; weights are not counted.
    assert cost.activations == 4 * 3 * (8 + 16 + 16)
    assert cost.outputs == 4 * 3 * 4


def test_a_plan_counts_runs_by_state_and_starts_nothing(tmp_path: Path) -> None:
    finished(tmp_path, 0.98, 0, "attention=softmax")
    before = sorted(path for path in tmp_path.rglob("*") if path.is_dir())
    made = plan(read_request([*SMALL, f"outputs={tmp_path}"]))
    assert made.states == {"done": 1, "to do": 3, "blocked": 4}
    cost = made.cells[0].cost
    assert cost is not None
    assert cost.steps == 400 * 5
    assert made.cells[1].cost is not None  # Heartbeat is known without its files
    assert sorted(path for path in tmp_path.rglob("*") if path.is_dir()) == sorted([*before, tmp_path / "cache"])


def test_steps_and_parameters_are_those_of_the_run(tmp_path: Path) -> None:
    config = read(compose([TASK, "scale=quick", "data=standin"]))
    data = build_data(config)
    request = read_request([*ONE, "scale=quick", "data=standin", f"outputs={tmp_path}"])
    cost = plan(request).cells[0].cost
    assert cost is not None
    assert cost.steps == config.recipe.epochs * len(data.train_dataloader())
    assert cost.parameters == sum(p.numel() for p in build_backbone(config, data.shape).parameters())


def test_hours_on_this_cpu_follow_finished_runs(tmp_path: Path) -> None:
    first = plan(read_request([*ONE, f"outputs={tmp_path}"]))
    assert "rough" in first.sources[CPU]
    cost = first.cells[0].cost
    assert cost is not None
    training = 1_000_000
    finished(
        tmp_path,
        0.98,
        0,
        "attention=softmax",
        training_flops=training,
        seconds=100.0,
        device=f"{cpu_model()}, 2 thread(s)",
    )
    again = plan(read_request([*ONE, f"outputs={tmp_path}"]))
    assert again.sources[CPU] == MEASURED
    speed = training * 2000 * 64 / 100.0
    assert again.cells[0].hours[CPU] == pytest.approx(cost.flops / speed / 3600)


@pytest.mark.parametrize("protocol", ["published", "strict"])
def test_operations_are_those_of_training_of_selecting_and_of_two_tests_at_the_end(protocol: str) -> None:
    config = read(compose([TASK, "attention=softmax", f"protocol={protocol}", "recipe.epochs=6"]))
    data = build_data(config)
    model = build_backbone(config, data.shape)
    selecting = data.sizes.get("validation") or data.sizes["test"]
    one = model_cost(model, model.example)  # type: ignore[arg-type]
    evaluated = 6 / config.recipe.eval_every_epochs * selecting + 2 * data.sizes["test"]
    wanted = 6 * data.sizes["train"] * one.training_flops + evaluated * one.flops
    assert run_cost(config).flops == pytest.approx(wanted, rel=0.02)  # the facts say how many are held out, in round


def test_a_plan_made_before_composes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = read_request([*SMALL, f"outputs={tmp_path}"])
    first = plan(request)
    composed = []
    monkeypatch.setattr(cell_cache, "run_cost", lambda config: composed.append(config))
    again = plan(request)
    assert not composed
    assert [cell.cost for cell in again.cells] == [cell.cost for cell in first.cells]
    assert [run.fingerprint for cell in again.cells for run in cell.runs] == [
        run.fingerprint for cell in first.cells for run in cell.runs
    ]


@pytest.mark.slow
def test_several_processes_compose_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = read_request([*SMALL, "rows=softmax,bn,bn_sh", f"outputs={tmp_path / 'a'}"])
    alone = plan(request)
    monkeypatch.setattr(cell_cache, "_LEAST_SHARE", 2)
    monkeypatch.setattr(cell_cache.os, "sched_getaffinity", lambda process: range(2))
    together = plan(read_request([*SMALL, "rows=softmax,bn,bn_sh", f"outputs={tmp_path / 'b'}"]))
    assert [cell.cost for cell in together.cells] == [cell.cost for cell in alone.cells]
    assert [cell.cell.metrics for cell in together.cells] == [cell.cell.metrics for cell in alone.cells]
    assert [cell.cell.row for cell in together.cells] == [cell.cell.row for cell in alone.cells]
    assert together.states == alone.states


def test_a_mixer_of_ones_own_may_look_at_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looks_at_values.py").write_text(
        "import torch\n"
        "from reattend.attention import Capabilities, Mixer\n"
        "class Scaled(Mixer):\n"
        "    def __init__(self, spec):\n"
        "        super().__init__()\n"
        "        self.out = torch.nn.Linear(spec.dim, spec.dim)\n"
        "    @classmethod\n"
        "    def capabilities(cls, **options):\n"
        "        return Capabilities(padding_mask=True)\n"
        "    def forward(self, x, padding_mask=None, context=None, context_mask=None):\n"
        "        return self.out(x) / max(1.0, float(x.detach().abs().max()))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    request = read_request(
        [
            *ONE,
            "rows=softmax,scaled",
            f"outputs={tmp_path}",
            "row.scaled=attention=custom attention.target=looks_at_values.Scaled",
        ]
    )
    own = plan(request).cells[-1]
    assert own.cost is not None
    assert own.cost.flops > 0


def test_a_kernel_of_ones_own_may_look_at_values_and_is_run_again_when_it_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "kernel_of_ones_own.py"
    source.write_text(
        "from reattend.attention.kernels.softmax import SoftmaxKernel\n"
        "class Looking(SoftmaxKernel):\n"
        "    def forward(self, q, k, v, key_mask=None, **options):\n"
        "        return super().forward(q, k * min(1.0, float(k.detach().abs().max())), v, key_mask, **options)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    row = "row.looking=attention=bn attention.options.kernel=kernel_of_ones_own.Looking"
    request = read_request([*ONE, "rows=looking", row, f"outputs={tmp_path}"])
    (before,) = plan(request).cells
    assert before.cost is not None, before.cell.problem
    source.write_text(source.read_text().replace("min(1.0", "min(2.0"))
    (after,) = plan(read_request([*ONE, "rows=looking", row, f"outputs={tmp_path}"])).cells
    assert [run.fingerprint for run in before.runs] != [run.fingerprint for run in after.runs]


@pytest.mark.parametrize(
    "content", ["", "{", '{"digest": 1}', "[]", '{"digest": "x", "cells": {"attention=softmax": {}}}']
)
def test_a_damaged_cache_is_made_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / cell_cache.FILE
    path.parent.mkdir()
    path.write_text(content)
    assert plan(read_request([*ONE, f"outputs={tmp_path}"])).cells[0].cost is not None
    assert len(path.read_text()) > 1000


def test_a_plan_is_shown_with_commands_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(read_request([*SMALL, f"outputs={tmp_path}"]))
    shown = capsys.readouterr().out
    assert "bn_sh, JapaneseVowels" in shown
    assert "python train.py attention=bn_sh task=uea/japanese_vowels" in shown
    assert "softmax on Heartbeat, bn_sh on Heartbeat: The data set Heartbeat is not on this machine." in shown
    assert "a rough lower bound, from the stated peak: start, checkpoints and calls" in shown
    assert max(map(len, shown.split("Figures of a cell")[0].splitlines())) <= 130


def test_no_figure_of_a_plan_is_cut_however_narrow_the_terminal_is() -> None:
    request = read_request(["table=primal_dual/table1", "rows=softmax", "columns=JapaneseVowels"])
    cost = RunCost(steps=1_234_567, parameters=98_765_432, flops=3 * 10**18, modules=9, memory=5 * 2**30, disk=2**20)
    states: tuple[State, ...] = ("done", "interrupted", "failed", "to do")
    cells = []
    for row in ("softmax", "a_row_with_a_name_of_more_than_forty_letters_"):
        runs = [TableRun(((row, "JapaneseVowels"),), 0, (), None, None, None, state) for state in states]
        hours = {device: 12345.6 for device in DEVICES}
        cells.append(CellPlan(Cell(row, "JapaneseVowels", (), None), cost, tuple(runs), hours))
    made = Plan(request, tuple(cells), {})
    told = ("1,234,567", "98,765,432", "3,000,000.0", "5.0 GiB", "1.0 MiB", "12,345.6", "parameters", "h V100")
    for width in (40, 60, 80, 100, 130, 200):
        shown = io.StringIO()
        console = Console(width=width, file=shown)
        for block in blocks(made, width):
            console.print(block)
        lines = shown.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        for figure in told:
            assert any(figure in line for line in lines), (width, figure)
        assert "…" not in shown.getvalue()
