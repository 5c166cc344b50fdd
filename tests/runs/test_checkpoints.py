from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from reattend.errors import ReattendError
from reattend.runs.checkpoints import check_checkpoint, replace_checkpoint

from .processes import kill, started

SAVE_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
import torch
from reattend.runs.checkpoints import replace_checkpoint
for step in count():
    with replace_checkpoint(Path(sys.argv[1]), "abc") as partial:
        torch.save({"step": step, "weights": torch.full((100_000,), float(step))}, partial)
    if step == 0:
        print("begun")
"""


def save(path: Path, content: Any, fingerprint: str = "abc") -> None:
    with replace_checkpoint(path, fingerprint) as partial:
        torch.save(content, partial)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "last.ckpt"
    save(path, {"step": 7, "weights": torch.arange(1000.0), "nested": {"list": [1, None, "a", (2.5, True)]}})
    return path


def test_comes_back_as_it_was(path: Path) -> None:
    content = check_checkpoint(path, "abc")
    assert torch.equal(content.pop("weights"), torch.arange(1000.0))
    assert content == {"step": 7, "nested": {"list": [1, None, "a", (2.5, True)]}}


def test_stays_a_file_of_torch(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    assert set(content) == {"step", "weights", "nested"}


def test_only_the_checkpoint_is_left(path: Path) -> None:
    save(path, {"step": 8})
    assert list(path.parent.iterdir()) == [path]
    assert check_checkpoint(path, "abc") == {"step": 8}


def test_a_failing_writer_leaves_the_old_one(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), replace_checkpoint(path, "abc") as partial:
        fail_after(partial)
    assert check_checkpoint(path, "abc")["step"] == 7
    assert list(path.parent.iterdir()) == [path]


def fail_after(partial: Path) -> None:
    partial.write_bytes(b"half")
    raise ZeroDivisionError


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_cut_off(path: Path, keep: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ReattendError, match=r"last\.ckpt is cut off.*Delete.*rerun=true"):
        check_checkpoint(path, "abc")


def test_one_changed_bit_in_a_tensor(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.find(torch.arange(500.0, 510.0).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(ReattendError, match=r"last\.ckpt is damaged.*Delete.*rerun=true"):
        check_checkpoint(path, "abc")


def test_every_region_of_the_file_is_guarded(path: Path) -> None:
    """A changed byte is either noticed or without effect; it never brings another traceback or other numbers."""
    content = path.read_bytes()
    for position in range(0, len(content), 61):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            found = check_checkpoint(path, "abc")
        except ReattendError:
            continue
        assert torch.equal(found["weights"], torch.arange(1000.0)), position
        assert found["step"] == 7


def test_of_another_run(path: Path) -> None:
    with pytest.raises(ReattendError, match=r"last\.ckpt belongs to a run with fingerprint abc, this one has xyz"):
        check_checkpoint(path, "xyz")


def test_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ReattendError, match=r"last\.ckpt is no checkpoint of reattend"):
        check_checkpoint(path, "abc")


class Planted:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def test_code_inside_is_not_run(tmp_path: Path) -> None:
    path, proof = tmp_path / "last.ckpt", tmp_path / "proof"
    save(path, {"step": 1, "object": Planted(str(proof))})
    with pytest.raises(ReattendError, match="other objects than tensors"):
        check_checkpoint(path, "abc")
    assert not proof.exists()


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"last\.ckpt does not exist"):
        check_checkpoint(tmp_path / "last.ckpt", "abc")


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="cannot be read"):
        check_checkpoint(tmp_path, "abc")


def test_kill_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    with started(SAVE_FOR_EVER, path) as process:
        time.sleep(0.05)
        kill(process)
    content = check_checkpoint(path, "abc")
    assert torch.equal(content["weights"], torch.full((100_000,), float(content["step"])))
