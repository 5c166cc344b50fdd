from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reattend.runs.environment import commit_label, git, versions, write_environment
from reattend.runs.files import read_json

from .processes import SOURCE


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    command(folder, "init", "--quiet")
    return folder


def command(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path) -> str:
    command(folder, "add", "--all")
    command(folder, "commit", "--quiet", "--no-verify", "-m", "x")
    return command(folder, "rev-parse", "HEAD")


def test_outside_a_repository(tmp_path: Path) -> None:
    assert git(tmp_path) is None
    assert commit_label(None) is None


def test_before_the_first_commit(repository: Path) -> None:
    state = git(repository)
    assert state == {"commit": None, "dirty": False, "diff_sha256": None}
    assert commit_label(state) is None


def test_a_commit_and_changes(repository: Path) -> None:
    file = repository / "package" / "a.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    head = commit(repository)
    clean = git(file.parent)
    assert clean == {"commit": head, "dirty": False, "diff_sha256": None}
    assert commit_label(clean) == head

    file.write_text("x = 2\n")
    changed = git(file.parent)
    assert changed is not None
    assert changed["dirty"]
    assert commit_label(changed) == f"{head}+changes"
    assert git(file.parent) == changed

    file.write_text("x = 3\n")
    assert (git(file.parent) or {})["diff_sha256"] != changed["diff_sha256"]


@pytest.mark.parametrize("name", ["src/new file.py", "configs/beta/mine.yaml", "my_attention.py"])
def test_new_files_count_where_a_run_uses_them(repository: Path, name: str) -> None:
    (repository / "src").mkdir()
    (repository / "src" / "a.py").write_text("x = 1\n")
    head = commit(repository)
    for unused in ("notes.py", "my_table.yaml", "src/data.bin"):
        (repository / unused).write_text("z")
    own = [repository / "my_attention.py", repository.parent / "elsewhere.py"]
    assert commit_label(git(repository / "src", own)) == head
    (repository / name).parent.mkdir(parents=True, exist_ok=True)
    (repository / name).write_text("y = 1\n")
    before = git(repository / "src", own)
    (repository / name).write_text("y = 2\n")
    after = git(repository / "src", own)
    assert before is not None
    assert after is not None
    assert commit_label(before) == f"{head}+changes"
    assert before["diff_sha256"] != after["diff_sha256"]


def test_code_that_the_repository_ignores_is_not_of_it(repository: Path) -> None:
    (repository / ".gitignore").write_text(".venv/\n")
    commit(repository)
    installed = repository / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "a.py").touch()
    assert git(installed) is None


def test_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git(repository) is None


def test_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "123")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    content = write_environment(tmp_path)
    assert read_json(tmp_path / "environment.json", "") == content
    assert content["versions"]["torch"] == torch.__version__.partition("+")[0] or "+" in content["versions"]["torch"]
    assert content["variables"]["MALLOC_TRIM_THRESHOLD_"] == "123"
    assert content["threads"] == torch.get_num_threads()
    assert len(content["gpus"]) == torch.cuda.device_count()
    assert content["cpu"]
    assert "secret" not in (tmp_path / "environment.json").read_text()


def test_versions_are_read_without_importing(tmp_path: Path) -> None:
    code = "import sys; from reattend.runs.environment import versions; versions(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": SOURCE})
    assert versions()["python"] == sys.version.split()[0]
