"""The command, its three files and what it prints."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from reattend.errors import ReattendError
from reattend.runs.metrics import MetricsFile
from reattend.runs.status import mark
from reattend.search.best import Best, TrialRecord, write_best
from reattend.tables.collect import collect_evidence
from reattend.tables.render.commands import report_command, reproduce_command
from reattend.tables.render.page import part
from reattend.tables.report import OPTIONS, main, report_folder, write
from reattend.tables.request import KEYS, read_request
from reattend.tables.table import Setting
from reattend.tables.worklist import FAILURES
from tests.tables.finished import finished

TABLE = r"""
title: Rows & <b>columns</b> | β_1 of 100 %
paper: a paper (A & B, 2099), Table 0
average: 3 runs
seeds: 3
values:
  accuracy: {metric: test/accuracy, better: higher, unit: "%", margin: 1.0}
  memory: {metric: peak_memory, better: lower, unit: GB, relative_to: softmax, margin: 0.05}
rows:
  softmax: {overrides: [attention=softmax], label: "soft_max"}
  bn: {overrides: [attention=bn]}
  sh: {overrides: [attention=sh]}
columns:
  Vowels: {overrides: [task=uea/japanese_vowels]}
  Later: {overrides: [task=d4rl/medium_expert_halfcheetah]}
mean: Average
published:
  - {value: accuracy, certainty: read, source: page 1, numbers: {softmax: {Vowels: 98.0}}}
  - {value: accuracy, certainty: unconfirmed, source: recalled, numbers: {bn: {Vowels: 99.0}}}
  - {value: memory, certainty: read, source: page 2, numbers: {softmax: {Vowels: 10.0}, bn: {Vowels: 5.0}}}
elsewhere:
  - {value: accuracy, certainty: read, source: another paper, numbers: {softmax: {Vowels: 97.5}}}
claims:
  better:
    text: bn is above softmax
    certainty: read
    source: page 1
    left: {row: bn, column: Vowels, value: accuracy}
    right: {row: softmax, column: Vowels, value: accuracy}
    at_least: 0.0
footnotes: [A footnote.]
"""
COST = {"softmax": 4 * 10**9, "bn": 2 * 10**9}


def made(folder: Path, *overrides: str) -> Path:
    """A table and six runs of it; one has no metrics.csv. Returns the table's file."""
    for row, memory in COST.items():
        for seed in range(3):
            result = finished(folder, 0.979 + 0.001 * seed, seed, f"attention={row}", *overrides, peak_memory=memory)
            (run,) = folder.rglob(f"*{result.fingerprint}")
            if (row, seed) != ("bn", 2):
                metrics = MetricsFile(run / "metrics.csv")
                for epoch in (2, 4, 6):
                    metrics.append(epoch, 5 * epoch, {"test/accuracy": 0.9 + 0.01 * epoch + 0.001 * seed})
    path = folder / "two.yaml"
    path.write_text(TABLE)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page")
    write(read_request([f"table={made(path)}", f"outputs={path}"]))
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return folder / "reports" / "two"


def text(page: Path, name: str = "report.html") -> str:
    return (page / name).read_text()


def visible(page: Path) -> str:
    """The text of the HTML file without its marks and drawings."""
    without = re.sub(r"<(style|svg).*?</\1>", "", text(page), flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", without)).split())


def test_each_number_stands_beside_the_published_one_with_difference_and_verdict(page: Path) -> None:
    told = visible(page)
    assert "98.00 ± 0.10 (3) paper 98.00 Δ +0.00 [−0.17, 0.17] ✓ reproduced" in told
    assert "98.00 ± 0.10 (3) paper 99.00 unconfirmed" in told
    assert "2.00 ± 0.00 (3) paper 5.00 0.50× soft_max, paper 0.50× Δ 1.00× [1.00, 1.00] ✓ reproduced" in told
    assert "bn on Vowels: the published number is unconfirmed" in told
    assert "bn is above softmax bn, Vowels − soft_max, Vowels ≥ 0.00; page 1 (read)" in told
    assert "? undecided" in told
    assert "elsewhere, not compared with: accuracy of soft_max: Vowels 97.50 (read, another paper)" in told
    assert "accuracy of bn: unconfirmed, recalled" in told
    assert "A footnote." in told


def test_all_three_files_say_the_same_numbers(page: Path) -> None:
    assert "| soft\\_max | **98.00 ± 0.10 (3)**<br>paper 98.00<br>Δ +0.00 \\[−0.17, 0.17\\]<br>✓ reproduced |" in text(
        page, "report.md"
    )
    latex = text(page, "table.tex")
    assert r"soft\_max & 98.00 $\pm$ 0.10 (3) & blocked" in latex
    assert r"\quad verdict & $\surd$ reproduced" in latex
    assert r"99.00$^{\dagger}$" in latex


def test_missing_and_blocked_runs_are_named_with_the_command_that_fills_them(folder: Path, page: Path) -> None:
    told = visible(page)
    assert "6 of 18 runs done, 3 to do, 9 blocked" in told
    train = f"python train.py -m attention=sh task=uea/japanese_vowels outputs={folder} seed=0,1,2"
    assert train in told
    assert train in text(page, "report.md")
    assert "task=d4rl/medium_expert_halfcheetah does not exist yet" in told
    assert f"python scripts/reproduce.py table={folder / 'two.yaml'} outputs={folder}" in told


def test_the_page_needs_nothing_else_and_shows_names_as_they_are(page: Path) -> None:
    source = text(page)
    assert not re.search(r"<(script|link|iframe|img|object)\b|@import|url\((?!#)", source)
    assert not [target for target in re.findall(r'(?:src|href)="([^"#]*)"', source) if "://" in target]
    assert "Rows & <b>columns</b> | β_1 of 100 %" in visible(page)
    assert "<b>columns</b>" not in source
    names = re.findall(r'\bid="([^"]+)"', source)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', source)) <= set(names)


def test_every_run_leads_to_its_result_file(page: Path) -> None:
    paths = re.findall(r'<a href="([^"]+)"', text(page))
    assert len(paths) == 6
    assert all((page / unquote(path)).samefile((page / unquote(path)).resolve(strict=True)) for path in paths)
    assert all(f"](<{unquote(path)}>)" in text(page, "report.md") for path in paths)


def test_figures_are_drawn_and_what_is_not_is_said(page: Path) -> None:
    titles = [html.unescape(title) for title in re.findall(r"<figcaption>(.*?)</figcaption>", text(page))]
    assert titles == [
        "accuracy: learning curves (mean, and thin every seed)",
        "accuracy: every seed (bar: mean)",
        "accuracy: against FLOPs (mean ± std)",
        "accuracy: against time (mean ± std)",
        "memory: every seed (bar: mean)",
    ]
    (told,) = re.findall(r"No learning curve [^.]*metrics.csv[^:]*: bn (\S+)\.", visible(page))
    assert told in text(page)


def test_the_same_results_make_the_same_bytes(folder: Path, page: Path) -> None:
    before = {path.name: path.read_bytes() for path in page.iterdir()}
    write(read_request([f"table={folder / 'two.yaml'}", f"outputs={folder}"]))
    assert {path.name: path.read_bytes() for path in page.iterdir()} == before


def test_quick_pages_carry_a_stamp_and_neither_difference_nor_verdict(tmp_path: Path) -> None:
    table = made(tmp_path, "scale=quick")
    write(read_request([f"table={table}", f"outputs={tmp_path}", "scale=quick", "columns=Vowels"]))
    page = tmp_path / "reports" / "two-columns=Vowels-quick"
    stamp = "NOT COMPARABLE WITH PUBLISHED NUMBERS: scale=quick"
    assert text(page, "report.md").startswith(f"**{stamp}")
    assert text(page, "table.tex").count(rf"\caption{{\textbf{{{stamp}") == 2
    assert visible(page).partition("NOT COMPARABLE")[0].strip() == "Rows & <b>columns</b> | β_1 of 100 %"  # the title
    for told in (visible(page), text(page, "report.md"), text(page, "table.tex")):
        assert "98.00" in told
        assert not re.search(r"Δ|✓|reproduced|undecided|supported|difference", told)
    assert "Claims are not judged" in visible(page)


def test_the_terminal_shows_a_short_table_and_the_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([f"table={folder / 'two.yaml'}", f"outputs={folder}", "rows=softmax", "columns=Vowels", f"to={folder / 'to'}"])
    assert "Of the table: 1 of 3 rows, 1 of 2 columns. 3 of 3 runs done" in visible(folder / "to")
    shown = capsys.readouterr().out
    assert re.search(r"soft_max +Vowels +accuracy \(%\) +98\.00 ± 0\.10 \(3\) +98\.00 .*reproduced", shown)
    assert "3 of 3 runs done" in shown
    for name in ("report.html", "report.md", "table.tex"):
        assert str(folder / "to" / name) in shown
        assert (folder / "to" / name).exists()


def test_nothing_finished_makes_a_page_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "two.yaml").write_text(TABLE)
    paths = write(read_request([f"table={tmp_path / 'two.yaml'}", f"outputs={tmp_path}", "seeds=1"]))
    assert "0 of 6 runs done, 3 to do, 3 blocked" in visible(paths[0].parent)
    assert "No run is finished." in visible(paths[0].parent)
    assert "no number yet" in capsys.readouterr().out


def test_numbers_that_are_filled_in_are_marked(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "row,column,value,number,spread,runs,source\n"
        "bn,Vowels,accuracy,98.1,,,page 3\nsh,Vowels,accuracy,97.0,,,page 3\n"
    )
    main([f"table={folder / 'two.yaml'}", f"outputs={folder}", f"published={tmp_path / 'mine.csv'}", f"to={tmp_path}"])
    assert "paper 98.10 filled in Δ −0.10" in visible(tmp_path)
    assert "filled in from mine.csv: page 3" in visible(tmp_path)
    assert "98.10 (filled in)" in text(tmp_path, "report.md")
    assert r"98.10$^{\ddagger}$" in text(tmp_path, "table.tex")


def test_a_mistake_ends_with_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["table=primal_dual/table1", "columns=JapaneseVowel"])
    assert ended.value.code == 2
    assert "Did you mean 'JapaneseVowels'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ([], "own/small_sets"),
        (["scale=paper", "trainer=cpu", "outputs=elsewhere", "logger=csv"], "own/small_sets"),
        (["scale=quick", "data=standin"], "own/small_sets-quick-standin"),
        (
            ["recipe.epochs=7", "trainer.precision=bf16-mixed"],
            "own/small_sets-recipe.epochs=7-trainer.precision=bf16-mixed",
        ),
        (["rows=bn,sh"], "own/small_sets-rows=bn+sh"),
        (["rows=bn_sh", "columns=OSULeaf", "seeds=1"], "own/small_sets-rows=bn_sh-columns=OSULeaf-seeds=1"),
        (["rows=sh,efficient"], "own/small_sets-rows=sh+efficient"),
        (["rows=x", "row.x=attention=bn beta.value=.3"], "own/small_sets-rows=x-row.x=attention=bn_beta.value=.3"),
    ],
)
def test_pages_of_other_runs_or_parts_lie_apart(extra: list[str], name: str) -> None:
    assert report_folder(read_request(["table=own/small_sets", *extra]), Path("out")) == Path("out", "reports", name)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["columns=Later"], "task=d4rl/medium_expert_halfcheetah does not exist yet"),
        (["rows=my_file.Mixer", "columns=Vowels"], "my_file"),
        (["outputs={folder}/none"], r"there are no runs in \S+/none/runs.*This runs them: python scripts/reproduce.py"),
    ],
)
def test_what_could_say_nothing_writes_no_page(folder: Path, page: Path, words: list[str], told: str) -> None:
    before = sorted(folder.rglob("*"))
    given = [word.format(folder=folder) for word in words]
    with pytest.raises(ReattendError, match=told):
        write(read_request([f"table={folder / 'two.yaml'}", f"outputs={folder}", *given]))
    assert sorted(folder.rglob("*")) == before


def test_the_best_of_a_search_is_told_with_its_trials_and_the_seed_that_it_was_chosen_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, lr = tmp_path / "best.yaml", "recipe.optimizer.lr"
    overrides = ["attention=bn", f"{lr}=0.0003"]
    space = {lr: "interval(1e-5, 1e-2)"}
    write_best(found, Best("lr", "val/accuracy", 0.91, 20, 1, 2, space, overrides, [TrialRecord(overrides, 0.91)]))
    for seed in (0, 2):
        finished(tmp_path, 0.98, seed, f"best={found}")
    request = [f"table={folder / 'two.yaml'}", f"outputs={tmp_path}", "columns=Vowels", "rows=softmax,found"]
    write(read_request([*request, f"row.found=best={found}", f"to={tmp_path / 'page'}"], OPTIONS))
    note = "best of 20 trials by val/accuracy (search=lr, seed 2; 1 failed); its means have seed 2 in them"
    for told in (visible(tmp_path / "page"), text(tmp_path / "page", "report.md"), capsys.readouterr().out):
        assert note in told.replace("\n", " ").replace("\\", "")
    assert "1 failed); its means have seed 2" in text(tmp_path / "page", "table.tex")
    told = visible(tmp_path / "page")
    assert (
        f"found: best of 20 trials by val/accuracy (search=lr, seed 2; 1 failed), {lr} in {space[lr]}: {lr}=0.0003"
        in told
    )
    assert "⚠ mixed: search soft_max: not searched" in told
    assert "Of the table: 1 of 3 rows, 1 added, 1 of 2 columns." in told


def test_runs_that_failed_too_often_are_told_and_tried_again_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "two.yaml"
    table.write_text(TABLE)
    request = read_request([f"table={table}", f"outputs={tmp_path}", "rows=sh", "columns=Vowels", "seeds=1"])
    run_folder = collect_evidence(request).runs[0].folder
    assert run_folder is not None
    run_folder.mkdir(parents=True)
    failure = {"time": "2099-01-01", "type": "OutOfMemoryError", "message": "too large"}
    (run_folder / FAILURES).write_text(f"{json.dumps(failure)}\n" * 3)
    mark(run_folder, "failed", error=MemoryError("too large"))
    (page, *_) = write(request)
    assert "seeds=1" in (command := re.findall(r"python scripts/reproduce.py [^<\n]*", visible(page.parent))[0])
    assert "retries=3" in command
    shown = capsys.readouterr().out
    assert "failed: sh, Vowels: MemoryError: too large" in shown


@pytest.mark.parametrize(
    "words",
    [
        ["table=primal_dual/table1"],
        ["table=primal_dual/table1", "rows=softmax,my_file.Mixer", "seeds=2", "scale=quick"],
        ["table=primal_dual/table1", "rows=bn,mine", "row.mine=attention=bn beta.value=0.3", "columns=Heartbeat"],
        ["table=primal_dual/table1", "row.mine=attention=bn beta.value=0.3"],
        ["table=own/small_sets", "rows=softmax,mine", "row.mine=attention=bn beta.value=0.3", "seeds=4"],
    ],
)
def test_the_commands_ask_for_the_same_again(words: list[str]) -> None:
    request = read_request(words)
    for made_again, script in ((reproduce_command(request), "reproduce"), (report_command(request), "report")):
        command, path, *arguments = shlex.split(made_again)
        assert (command, path) == ("python", f"scripts/{script}.py")
        assert read_request(arguments) == request
    launched = read_request([*words, "workers=2", "plan=false"], KEYS["scripts/reproduce.py"])
    assert report_command(launched) == report_command(request)
    shown = read_request([*words, "to=here"], OPTIONS)
    assert read_request(shlex.split(report_command(shown))[2:], OPTIONS) == shown


def test_the_page_of_a_ladder_asks_for_the_ladder_and_lies_in_a_folder_of_its_own() -> None:
    words = ["table=own/small_sets", "rows=softmax,mine", "row.mine=attention=bn beta.value=0.3", "columns=OSULeaf"]
    asked = read_request(words)
    rungs = {
        f"{row}, {name}": Setting([*asked.table.rows[row].overrides, *overrides])
        for row in asked.rows
        for name, overrides in {
            "published": ["fidelity=published"],
            "batch_norm_over=real": ["fidelity=published", "fidelity.batch_norm_over=real"],
            "corrected": ["fidelity=corrected"],
        }.items()
    }
    table = dataclasses.replace(asked.table, rows=rungs)
    ladder = dataclasses.replace(asked, table=table, rows=tuple(rungs), options={"ladder": "true"})
    for command in (reproduce_command(ladder), report_command(ladder)):
        assert sorted(shlex.split(command)[2:]) == sorted([*words, "ladder=true"])
    assert part(ladder) == part(asked).removesuffix(".") + ", as a fidelity ladder."
    assert report_folder(ladder, Path("out")).name == report_folder(asked, Path("out")).name + "-ladder=true"


def compiled(latex: Path, folder: Path) -> None:
    source = (
        rf"\documentclass{{article}}\usepackage{{booktabs,graphicx}}\begin{{document}}\input{{{latex}}}\end{{document}}"
    )
    (folder / "main.tex").write_text(source)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_the_latex_compiles(page: Path, tmp_path: Path) -> None:
    compiled(page / "table.tex", tmp_path)


def test_the_latex_is_balanced(page: Path) -> None:
    latex = re.sub(r"\\[\\{}%&$#_]", "", text(page, "table.tex"))
    depth = 0
    for character in latex.partition("\n")[2]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert latex.count("$") % 2 == 0
    assert not re.search(r"[%#]|[^\x00-\x7f]", latex.partition("\n")[2])
    assert re.findall(r"\\begin\{(\w+)\}", latex).count("table") == re.findall(r"\\end\{(\w+)\}", latex).count("table")


def test_a_file_of_numbers_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"none\.csv cannot be read"):
        write(read_request(["table=primal_dual/table1", f"published={tmp_path / 'none.csv'}"], OPTIONS))
