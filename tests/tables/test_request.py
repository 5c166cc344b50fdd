"""What a command line asks of a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from reattend.errors import ReattendError
from reattend.runs.lease import Lease
from reattend.runs.status import mark
from reattend.tables.request import read_request, read_requests
from reattend.tables.results import load_results
from reattend.tables.runs import table_runs
from reattend.tables.table import load_table, table_names
from tests.tables.finished import finished

TABLE = "table=primal_dual/table1"


def test_rows_columns_seeds_and_overrides_are_told_apart() -> None:
    request = read_request([TABLE, "rows=softmax,linear", "columns=JapaneseVowels", "seeds=2", "scale=quick"])
    assert request.rows == ("softmax", "linear")
    assert request.seeds == (0, 1)
    assert request.extra == ("scale=quick",)
    assert [cell.overrides for cell in request.cells()] == [
        ("attention=softmax", "task=uea/japanese_vowels", "scale=quick"),
        ("attention=linear", "task=uea/japanese_vowels", "scale=quick"),
    ]


def test_a_users_attention_becomes_a_row_by_one_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nfrom reattend.attention import Capabilities, Mixer\n"
        "class Mine(Mixer):\n"
        "    def __init__(self, spec, *, gate: bool = True):\n        super().__init__()\n"
        "        self.proj = nn.Linear(spec.dim, spec.dim)\n"
        "    @classmethod\n    def capabilities(cls, **options):\n        return Capabilities(padding_mask=True)\n"
        "    def forward(self, x, padding_mask=None, context=None, context_mask=None):\n        return self.proj(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    short = read_request([TABLE, "rows=softmax,mine.Mine", "columns=JapaneseVowels"])
    added = "row.mine=attention=custom attention.target=mine.Mine attention.options.gate=false"
    long = read_request([TABLE, added, "columns=JapaneseVowels"])
    assert long.rows == ("softmax", "bn", "sh", "bn_sh", "mine")
    for cell in (short.cells()[-1], long.cells()[-1]):
        assert cell.config is not None, cell.problem
        assert cell.config.attention.target == "mine.Mine"


def test_overrides_of_a_row_may_have_spaces_in_quotes_or_braces() -> None:
    for written in ("attention.at={-1: bn, 0: sh}", "'attention.at={-1: bn, 0: sh}'"):
        request = read_request([TABLE, f"row.mixed=attention=layers {written}", "rows=mixed", "columns=JapaneseVowels"])
        (cell,) = request.cells()
        assert cell.config is not None, cell.problem
        assert cell.config.attention.at == {-1: "bn", 0: "sh"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["row.softmax=attention=bn"], "the table has a row of that name"),
        (["row.=attention=bn"], "a row has a name"),
        (["row.x="], "a row has a name"),
        (["row.x=attention='bn"], "No closing quotation"),
        (["row.x=attention=bn seed=3"], "seed=3: a table is run with the seeds 0 to n - 1"),
        (["row.x=attention=bn launcher=slurm"], "launcher=slurm: it is for all runs"),
    ],
)
def test_rows_that_cannot_be_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ReattendError, match=told):
        read_request([TABLE, *words])


def test_a_name_that_is_given_twice_counts_once() -> None:
    request = read_request([TABLE, "rows=softmax,bn,softmax", "columns=Heartbeat,Heartbeat"])
    assert (request.rows, request.columns) == (("softmax", "bn"), ("Heartbeat",))


def test_a_table_file_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("title: x\n")
    with pytest.raises(ReattendError, match=r"There is no file .*mime\.yaml\. Did you mean 'mine\.yaml'"):
        read_request([f"table={tmp_path / 'mime.yaml'}"])


def test_a_ladder_turns_each_quirk_alone() -> None:
    request = read_request(["table=primal_dual/table1", "rows=softmax,primal", "columns=JapaneseVowels", "ladder=true"])
    assert request.rows[:3] == ("softmax, published", "softmax, batch_norm_over=real", "softmax, corrected")
    assert "primal, primal.loss_tokens=real" in request.rows
    by_row = {cell.row: cell.config for cell in request.cells()}
    alone = by_row["primal, primal.rows=real"]
    assert alone is not None
    assert alone.fidelity.primal.rows == "real"
    assert alone.fidelity.primal.loss_tokens == "all"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Which table"),
        (["table=primal_dual/table111"], "Did you mean"),
        ([TABLE, "rows=sofmax"], "softmax"),
        ([TABLE, "columns=JapaneseVowel"], "JapaneseVowels"),
        ([TABLE, "seeds=0"], "at least 1"),
        ([TABLE, "scal=quick"], "scale"),
        ([TABLE, "scale=quik"], "quick"),
        ([TABLE, "-m"], "key=value only"),
        ([TABLE, "seeds"], "a '=' is missing"),
        ([TABLE, "rows="], "No rows are chosen"),
        ([TABLE, "ladder=maybe"], "true or false"),
        (["table=nowhere.yaml"], "nowhere.yaml"),
        (["table=primal_attention/table4", "ladder=true"], "does not exist yet"),
        ([TABLE, "row.x=attention=sofmax"], "softmax"),
        (["tabel=primal_dual/table1"], "Did you mean 'table'?"),
        ([TABLE, "sead=3"], "Did you mean 'seeds'?"),
        ([TABLE, "colums=JapaneseVowels"], "Did you mean 'columns'?"),
        ([TABLE, "seed=3"], "seeds=n"),
        ([TABLE, "plan=true"], "'plan' is a key of python scripts/reproduce.py"),
        ([TABLE, "to=x"], "'to' is a key of python scripts/report.py"),
    ],
)
def test_mistakes_are_told_with_the_nearest_choice(arguments: list[str], told: str) -> None:
    with pytest.raises(ReattendError) as caught:
        read_request(arguments)
    assert told in str(caught.value)


def test_each_run_of_a_table_is_known_with_its_state_and_command(tmp_path: Path) -> None:
    finished(tmp_path, 0.98, 0, "attention=softmax")
    request = read_request(
        [TABLE, "rows=softmax", "columns=JapaneseVowels,Heartbeat", "seeds=2", f"outputs={tmp_path}"]
    )
    runs = table_runs(request.cells(), request.seeds, load_results([tmp_path / "runs"]))
    assert [run.state for run in runs] == ["done", "to do", "blocked", "blocked"]
    assert runs[1].command.startswith("python train.py attention=softmax task=uea/japanese_vowels outputs=")
    assert runs[1].command.endswith("seed=1")
    assert runs[2].reason.startswith("The data set Heartbeat is not on this machine")
    assert runs[1].folder is not None
    with Lease.claim(runs[1].folder):
        mark(runs[1].folder, "running")
        runs = table_runs(request.cells(), request.seeds, load_results([tmp_path / "runs"]))
        assert [run.state for run in runs[:2]] == ["done", "running"]
    runs = table_runs(request.cells(), request.seeds, load_results([tmp_path / "runs"]))
    assert [run.state for run in runs[:2]] == ["done", "interrupted"]


def test_cells_that_are_the_same_run_once(tmp_path: Path) -> None:
    request = read_request(
        [TABLE, "row.again=attention=softmax", "rows=softmax,again", "columns=JapaneseVowels", "seeds=1"]
    )
    (run,) = table_runs(request.cells(), request.seeds, load_results([tmp_path]))
    assert run.cells == (("softmax", "JapaneseVowels"), ("again", "JapaneseVowels"))


def test_missing_data_blocks_a_run_and_says_what_to_do(tmp_path: Path) -> None:
    table = tmp_path / "mine.yaml"
    table.write_text(
        "{title: t, paper: p, average: one, seeds: 1, values: {a: {metric: test/accuracy, better: higher}},"
        " rows: {softmax: {overrides: [attention=softmax]}},"
        " columns: {x: {overrides: [task=uea/folder, task.dataset=Heartbeat]}}}"
    )
    request = read_request([f"table={table}"])
    (run,) = table_runs(request.cells(), request.seeds, load_results([tmp_path]))
    assert run.state == "blocked"
    assert "Heartbeat is not on this machine" in run.reason


@pytest.mark.parametrize(
    ("place", "wrong", "told"),
    [
        ("overrides: [", "attention=bnn", "mine.yaml.overrides: attention=bnn: attention has no member 'bnn'. Did you"),
        ("softmax: {overrides: [", "scale=quik", "rows.softmax.overrides: scale=quik: .*Did you mean 'quick'"),
        ("columns: {x: {overrides: [", "task=uea/hartbeat", "columns.x.overrides: task=.*Did you mean 'uea/heartbeat'"),
    ],
)
def test_a_member_that_no_table_of_ours_waits_for_is_a_mistake(
    tmp_path: Path, place: str, wrong: str, told: str
) -> None:
    table = tmp_path / "mine.yaml"
    text = (
        "{title: t, paper: p, average: one, seeds: 1, values: {a: {metric: test/accuracy, better: higher}},"
        " overrides: [data=standin], rows: {softmax: {overrides: [attention=softmax]}},"
        " columns: {x: {overrides: [task=uea/heartbeat]}}}"
    )
    table.write_text(text)
    assert load_table(str(table)).title == "t"
    table.write_text(text.replace(place, f"{place}{wrong}, ", 1))
    with pytest.raises(ReattendError, match=told):
        load_table(str(table))


def test_all_tables_are_asked_for_as_a_whole() -> None:
    requests = read_requests(["table=all", "scale=quick"])
    assert [request.name for request in requests] == table_names()
    assert all(request.extra == ("scale=quick",) for request in requests)
    assert all(len(request.seeds) == load_table(request.name).seeds for request in requests)
    assert {len(request.seeds) for request in read_requests(["table=all", "seeds=2"])} == {2}
    with pytest.raises(ReattendError, match="needs one table"):
        read_requests(["table=all", "rows=softmax"])


def test_an_override_must_have_an_effect_in_some_cell_and_stands_in_the_commands_of_those() -> None:
    (request,) = read_requests([TABLE, "rows=softmax,bn", "columns=JapaneseVowels", "beta.value=0.3"])
    assert [cell.command for cell in request.cells()] == [
        "python train.py attention=softmax task=uea/japanese_vowels",
        "python train.py attention=bn task=uea/japanese_vowels beta.value=0.3",
    ]
    with pytest.raises(ReattendError, match="nothing reads it with attention=softmax, attention=sh"):
        read_requests([TABLE, "rows=softmax,sh", "columns=JapaneseVowels", "beta.value=0.3"])
    with pytest.raises(ReattendError, match=r"row mine: window.value=8: nothing reads it with attention=softmax"):
        read_requests([TABLE, "row.mine=attention=softmax window.value=8", "rows=mine", "columns=JapaneseVowels"])
    assert read_requests(["table=all", "scale.dim=8"])  # of decoders, which some tables have


def test_an_override_for_all_cells_does_not_take_the_place_of_what_a_row_is() -> None:
    with pytest.raises(ReattendError, match=r"window\.value=4: row s1, row s8 would go by another window\.value than"):
        read_request(["table=own/text", "rows=softmax,s1,s8", "window.value=4", "data=standin"])
    with pytest.raises(ReattendError, match=r"task=uea/heartbeat: column JapaneseVowels would go by another task"):
        read_request([TABLE, "columns=JapaneseVowels", "task=uea/heartbeat"])
    assert read_request(["table=own/text", "rows=s8", "window.value=8", "data=standin"]).rows == ("s8",)
    assert read_request(["table=own/small_sets", "rows=softmax", "columns=OSULeaf", "recipe.epochs=7"]).columns


def test_rows_may_be_asked_for_by_the_names_that_pages_show() -> None:
    assert read_request(["table=own/text", "rows=softmax,AFT-local-8,s8"]).rows == ("softmax", "s8")


def test_a_finished_run_is_done_where_its_data_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(config: object) -> str:
        raise ReattendError("no data here")

    finished(tmp_path, 0.98, 0, "attention=softmax")
    monkeypatch.setattr("reattend.tables.runs.data_checksum", missing)
    monkeypatch.setattr("reattend.tables.results.data_checksum", missing)
    request = read_request([TABLE, "rows=softmax", "columns=JapaneseVowels", "seeds=2", f"outputs={tmp_path}"])
    runs = table_runs(request.cells(), request.seeds, load_results([tmp_path / "runs"]))
    assert [(run.state, run.reason) for run in runs] == [("done", ""), ("blocked", "no data here")]
    assert runs[0].folder is not None
    assert (runs[0].folder / "result.json").exists()
