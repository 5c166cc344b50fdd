"""`scripts/measure.py`: arguments, and tables of tiny layers."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from reattend.attention import MixerSpec
from reattend.efficiency.arguments import Shape, read_own
from reattend.efficiency.command import main
from reattend.efficiency.measure_language import measure_decoding, measure_language
from reattend.efficiency.measure_loading import measure_loading
from reattend.efficiency.measure_mechanisms import Mechanisms
from reattend.efficiency.measure_mixers import Mixers, measure_mixers
from reattend.efficiency.measure_training import AS_CONFIGURED, FOLLOWED, _followed

TINY = ["length=32", "dim=8", "batch_size=1", "rounds=1", "device=cpu"]


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mixer"], "there is no 'mixer' to measure. Did you mean 'mixers'?"),
        (["attention=sofmax"], "Did you mean 'softmax'?"),
        (["attention=softmax", "length=many"], "length: expected"),
        (["attention=softmax", "length=0"], "length"),
        (["attention=softmax", "lengths=64,32"], "lengths=64,32: the second must be the longer one"),
        (["attention=softmax", "lengths=64"], "lengths: expected 2 values"),
        (["attention=conv2d", "length=30", "grid=4x4"], "grid=4x4 is no grid of length=30 tokens"),
        (["attention=bn_sh,sh", "causal=true"], "attention=sh: it is not causal"),
        (["attention=softmax", "heads=3"], "num_heads=3 does not divide dim=64"),
        (["attention=softmax", "device=tpu"], "'tpu' is not one of auto, cpu, cuda"),
        (["peers", "which=performer"], "which=performer: no such package. Did you mean 'performer-pytorch'?"),
        (["mixers", "lenght=256"], "lenght=256: there is no option 'lenght'. Did you mean 'length'?"),
        (["peers", "whch=all"], "Did you mean 'which'?"),
        (["framework", "round=2"], "Did you mean 'rounds'?"),
        (["attention=softmax", "file="], "file= names no file"),
        (["mechanisms", "lengths=64,128"], "the second must be over twice the first"),
        (["mechanisms", "attention=layers", "file=unused.md"], "attention=layers is made of other attentions"),
        ([], "python scripts/measure.py [mixers]"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in _refused(arguments, capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["mixers", "peers", "mechanisms"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("too late")

    for place in ("measure_mixers.costs", "measure_peers.beside", "measure_mechanisms.measure"):
        monkeypatch.setattr(f"reattend.efficiency.{place}", measured)
    (tmp_path / "file").touch()
    told = _refused([what, *TINY, f"file={tmp_path}/file/table.md"], capsys)
    assert told == f"file={tmp_path}/file/table.md cannot be written: Not a directory\n"


def test_help_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    told = capsys.readouterr().out
    assert all(f"scripts/measure.py {what}" in told for what in ("[mixers]", "peers", "mechanisms", "framework"))


def test_the_followed_softmax_is_softmax_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 8, generator=generator) for _ in range(3))
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    for mask in (None, real):
        wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None, None])
        torch.testing.assert_close(_followed(q, k, v, mask, dropout=0.0, query_mask=mask), wanted)


def test_own_arguments_and_overrides_are_told_apart() -> None:
    given = ["attention=softmax,bn", "beta.value=0.3", "length=32", "grid=4x8", "lengths=16,64", "causal=true"]
    own, rest = read_own(Mixers, given, "")
    assert (own.attention, own.grid, own.lengths, own.causal) == (["softmax", "bn"], [4, 8], (16, 64), True)
    assert rest == ["beta.value=0.3"]


def test_only_what_needs_a_grid_is_given_one() -> None:
    shape = Shape(length=32, dim=8, heads=2, causal=True)
    assert shape.spec() == MixerSpec(dim=8, num_heads=2, max_length=32, causal=True)
    assert shape.spec(needs_grid=True).grid == (4, 8)
    assert Shape(length=32, grid=[2, 16]).spec(needs_grid=True).grid == (2, 16)


def test_mixers_is_what_is_meant_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["attention=softmax,bn", *TINY])
    assert stopped.value.code == 0
    rows = re.findall(r"^│ (\S.*?) +│", capsys.readouterr().out, flags=re.MULTILINE)
    assert rows == ["fused softmax", "softmax, unfused", "bn"]


def test_mixers_show_parameters_and_growth() -> None:
    page = measure_mixers(["attention=linear", "lengths=16,64", *TINY])
    assert page.columns[-3:] == ["time", "claimed", "memory"]
    cells = page.rows["linear"]["cells"]
    assert cells[4] == str(4 * 8 * 8 + 4 * 8)
    assert re.match(r"N\^-?\d\.\d\d", cells[5])
    assert cells[6] == "N^1"
    assert page.rows["softmax, unfused"]["cells"][5:] == ["", "N^2", ""]


def test_overrides_of_the_attention_leave_the_baseline_alone() -> None:
    page = measure_mixers(["attention=softmax", "attention.options.kernel.fused=false", *TINY])
    assert page.rows["softmax"]["raw"]["cost"]["bytes"] == page.rows["softmax, unfused"]["raw"]["cost"]["bytes"]
    assert page.rows["softmax"]["raw"]["cost"]["bytes"] > page.rows["fused softmax"]["raw"]["cost"]["bytes"]


@pytest.mark.slow
def test_the_table_of_mechanisms_grows_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mechanisms.md"
    tiny = [*TINY, "lengths=16,64", f"file={file}"]
    for name in ("linear", "conv2d"):
        with pytest.raises(SystemExit) as stopped:
            main(["mechanisms", f"attention={name}", *tiny])
        assert stopped.value.code == 0
    rows = json.loads(file.with_suffix(".json").read_text())["rows"]
    assert list(rows) == ["linear", "conv2d"]
    linear, conv2d = rows["linear"], rows["conv2d"]
    assert re.fullmatch(r"to \d\.\de-\d+, gradients to \d\.\de-\d+", linear["cells"][0])
    assert linear["cells"][2] == "yes"
    assert conv2d["cells"][2] == "no"
    assert linear["raw"]["causal"]["costs"]["ours"]["bytes"] > 0
    assert conv2d["raw"]["causal"] is None
    assert conv2d["raw"]["growth"]["lengths"] == [8, 16]

    monkeypatch.setattr("reattend.efficiency.measure_mechanisms.plain_attentions", lambda: ["linear", "bn", "conv2d"])
    with pytest.raises(SystemExit):
        main(["mechanisms", *tiny])
    after = json.loads(file.with_suffix(".json").read_text())["rows"]
    assert list(after) == ["linear", "conv2d", "bn"]
    assert after["linear"] == linear


def test_quadratic_attentions_are_measured_at_shorter_lengths() -> None:
    assert Mechanisms(lengths=(2048, 16384)).quadratic_lengths == (1024, 4096)


def test_a_task_alone_measures_updates_of_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["backbone.options.dim=16", "backbone.options.depth=1", "batch_size=2", "rounds=1"]
    with pytest.raises(SystemExit) as stopped:
        main(["task=uea/japanese_vowels", "attention=bn,primal", *small])
    assert stopped.value.code == 0
    rows = re.findall(r"^│ (\S.*?) +│", capsys.readouterr().out, flags=re.MULTILINE)
    assert rows == [FOLLOWED, "bn", "primal", AS_CONFIGURED]


SMALL_DECODER = [*(f"backbone.options.{key}={size}" for key, size in {"dim": 8, "depth": 1}.items()), "rounds=1"]


def test_decoders_are_measured_beside_softmax_at_each_length() -> None:
    page = measure_language(["attention=linear", "lengths=16,32", *SMALL_DECODER])
    assert list(page.rows) == ["linear, 16 tokens", "linear, 32 tokens"]
    assert page.title.startswith("one update, batch 1; depth 1, width 8, 4 heads")


def test_the_state_of_a_recurrence_keeps_its_size() -> None:
    page = measure_decoding(["attention=softmax,linear", "lengths=8,24", *SMALL_DECODER])
    kept = {row: page.rows[row]["raw"]["bytes"] for row in page.rows}
    assert kept["linear, after 24 tokens"] == kept["linear, after 8 tokens"]
    assert kept["softmax, after 24 tokens"] == 3 * kept["softmax, after 8 tokens"] == 24 * 2 * 8 * 4


def test_loading_is_set_beside_updates(tmp_path: Path) -> None:
    small = ["backbone.options.dim=16", "backbone.options.depth=1", "recipe.batch_size=100", "scale=quick"]
    page = measure_loading([*small, "task=uea/japanese_vowels", "rounds=5", f"file={tmp_path / 'loading.md'}"])
    assert "100 samples a batch" in page.title
    waited, updated = (page.rows[name]["raw"]["seconds"] for name in ("waiting for its batch", "an update"))
    # More batches than the epoch of 270 samples has.
    assert len(waited) == len(updated) == 5
    share = 100 * statistics.median(waited) / statistics.median(updated)
    assert page.rows["waiting for its batch"]["cells"][-1] == f"{share:.2f} %"
    assert "waiting for its batch" in (tmp_path / "loading.md").read_text()
