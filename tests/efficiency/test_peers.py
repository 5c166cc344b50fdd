"""Packages for comparison: what is said when they are missing, and what they are compared with."""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from reattend.attention import MixerSpec
from reattend.efficiency.arguments import Shape
from reattend.efficiency.beside import beside
from reattend.efficiency.cost import forward_backward
from reattend.efficiency.measure_peers import measure_peers
from reattend.efficiency.ours import Candidate, candidate
from reattend.efficiency.peers import PEERS, Peer
from reattend.errors import ReattendError

ROOT = Path(__file__).parents[2]
SMALL = Shape(length=256, dim=16, heads=2, batch_size=1, rounds=1)


def _identity(package: Any, spec: MixerSpec) -> nn.Module:
    return nn.Linear(spec.dim, spec.dim)


def _peer(**options: Any) -> Peer:
    plain = {"package": "made-up", "module": "math", "attention": "linear", "build": _identity, "options": "one"}
    return Peer(**(plain | options))


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    peer = _peer(module="no_such_module.inner")
    assert peer.missing().endswith("pip install made-up")
    with pytest.raises(ReattendError, match="made-up is not installed"):
        peer.layer(MixerSpec(dim=8, num_heads=2, max_length=4))


def test_a_package_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package_for_a_test.py").write_text("raise RuntimeError('needs an older torch')")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    told = _peer(module="broken_package_for_a_test").missing()
    assert told == "made-up is installed but cannot be imported: RuntimeError: needs an older torch"


def test_a_form_that_a_package_lacks_is_told() -> None:
    with pytest.raises(ReattendError, match="made-up has no causal form"):
        _peer(causal=(False,)).layer(MixerSpec(dim=8, num_heads=2, max_length=4, causal=True))


def test_ours_theirs_and_softmax_are_measured_together() -> None:
    measured = beside("linear", [], _peer(), SMALL)
    assert {name: len(cost.rounds) for name, cost in measured.items()} == {"fused softmax": 1, "ours": 1, "theirs": 1}
    assert measured["theirs"].parameters == 16 * 17
    assert measured["theirs"].bytes < measured["ours"].bytes


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.attention}-{peer.label}")
def test_ours_exists_with_the_options_of_theirs(peer: Peer) -> None:
    for causal in peer.causal:
        shape = Shape(length=256, dim=16, heads=2, causal=causal)
        candidate(peer.attention, peer.overrides, shape, on_grid=peer.on_grid)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.attention}-{peer.label}")
def test_theirs_keeps_the_shape(peer: Peer) -> None:
    if peer.missing():
        pytest.skip(peer.missing())
    for causal in peer.causal:
        layer = peer.layer(Shape(length=256, dim=16, heads=2, causal=causal).spec(peer.on_grid))
        x = torch.randn(2, 256, 16)
        assert layer(x).shape == x.shape
        forward_backward(layer, 2, 256, 16)()


def test_both_are_built_on_the_grid_that_theirs_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[MixerSpec] = []
    real = Candidate.build
    monkeypatch.setattr(Candidate, "build", lambda ours: built.append(ours.spec) or real(ours))
    theirs = _peer(
        attention="lambda", build=lambda package, spec: built.append(spec) or nn.Linear(16, 16), on_grid=True
    )
    beside("lambda", [], theirs, SMALL)
    assert [spec.grid for spec in built] == [None, (16, 16), (16, 16)]


def test_slow_peers_are_measured_at_fewer_tokens_which_their_row_and_note_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[MixerSpec] = []
    options = {"most_tokens": 16, "on_grid": True, "caveat": "it is slow"}
    slow = _peer(attention="lambda", build=lambda package, spec: built.append(spec) or nn.Linear(8, 8), **options)
    peers = (slow, _peer(attention="relu", most_tokens=64))
    monkeypatch.setattr("reattend.efficiency.measure_peers.PEERS", peers)
    page = measure_peers(["length=64", "grid=8x8", "dim=8", "batch_size=1", "rounds=1", "causal=false", "device=cpu"])
    assert list(page.rows) == ["lambda: made-up, one, 16 tokens", "relu: made-up, one"]
    assert page.all_notes() == ["made-up: it is slow."]
    assert [(spec.max_length, spec.grid) for spec in built] == [(16, (4, 4))]
    assert [peer.fits(False, 64) for peer in peers] == [False, True]
    assert not peers[1].fits(False, 65)
    assert not _peer(causal=(True,)).fits(False, 8)


def test_a_grid_that_theirs_cannot_have_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    squares = next(peer for peer in PEERS if peer.package == "lambda-networks")
    monkeypatch.setattr("reattend.efficiency.measure_peers.PEERS", (replace(squares, module="math"), _peer()))
    page = measure_peers(["length=32", "dim=8", "batch_size=1", "rounds=1", "causal=false", "device=cpu"])
    assert list(page.rows) == ["linear: made-up, one"]
    assert "lambda-networks works on square grids alone, not on 4x8" in page.all_notes()[0]


def test_the_extra_lists_the_packages_that_install_everywhere() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["peers"]
    built_from_source = {"pytorch-fast-transformers"}
    assert set(extra) == {peer.package for peer in PEERS} - built_from_source


def test_rows_of_missing_packages_stay_out_and_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = (_peer(), _peer(package="absent", module="no_such_module"))
    monkeypatch.setattr("reattend.efficiency.measure_peers.PEERS", peers)
    page = measure_peers(["length=64", "dim=8", "batch_size=1", "rounds=1", "causal=false", "device=cpu"])
    assert list(page.rows) == ["linear: made-up, one"]
    assert len(page.rows["linear: made-up, one"]["cells"]) == len(page.columns) - 1
    assert page.all_notes() == ["absent is not installed; it serves this comparison only: pip install absent"]


@pytest.mark.parametrize(
    ("peer", "told"),
    [
        (_peer(module="no_such_module"), "made-up is not installed; .*pip install made-up"),
        (_peer(causal=(True,)), "made-up has no such form"),
    ],
)
def test_nothing_to_compare_is_told(peer: Peer, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reattend.efficiency.measure_peers.PEERS", (peer,))
    with pytest.raises(ReattendError, match=f"there is nothing to compare:\n{told}"):
        measure_peers(["length=64", "dim=8", "batch_size=1", "rounds=1", "causal=false", "device=cpu"])
