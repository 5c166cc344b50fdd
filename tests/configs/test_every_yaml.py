"""Every YAML file of the tree composes and reads, and the wheel carries them all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest

from reattend.config import build_mixer_factory, check_run, compose, config_dir, read
from reattend.config.groups import group_defaults
from reattend.config.schema import RunConfig
from reattend.errors import ReattendError

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path.relative_to(config_dir()).with_suffix("").as_posix() for path in config_dir().rglob("*.yaml"))
MEMBERS = [name.split("/", 1) for name in FILES if "/" in name and not name.startswith("table/")]
MORE = {
    "custom": ["attention.target=reattend.attention.MultiHeadAttention"],
    "transformer_ls": ["task=lra/text"],
    "nystromformer": ["task=lra/text"],
}


@cache
def member_run(group: str, member: str) -> RunConfig:
    """A run with that member; a task's with the attention that takes most of its published values."""
    more = MORE.get(member, []) if group in ("attention", "recipe") else []
    return read(compose([f"{group}={member}", *more, *(["attention=bn_sh"] if group == "task" else [])]))


def test_the_walk_sees_the_tree() -> None:
    assert "train" in FILES
    assert len(MEMBERS) >= 40
    assert {group for group, _ in MEMBERS} == set(group_defaults())


@pytest.mark.parametrize(("group", "member"), MEMBERS, ids="/".join)
def test_every_member_composes_and_reads(group: str, member: str) -> None:
    run = member_run(group, member)
    if group != "search":
        assert getattr(run, group).name == member


@pytest.mark.parametrize("attention", [member for group, member in MEMBERS if group == "attention"])
def test_every_attention_can_be_built_on_the_default_backbone_or_is_refused_for_its_grid(attention: str) -> None:
    run = member_run("attention", attention)
    if build_mixer_factory(run).capabilities.needs_grid:
        with pytest.raises(ReattendError, match="works on a grid of tokens and the backbone has none"):
            check_run(run)
    else:
        check_run(run)


@pytest.mark.parametrize("task", [member for group, member in MEMBERS if group == "task"])
def test_every_task_can_be_built_with_the_published_values(task: str) -> None:
    check_run(member_run("task", task))
    check_run(read(compose([f"task={task}", "attention=softmax", "scale=quick", "protocol=strict"])))


def test_the_defaults_list_stays_short() -> None:
    assert len((config_dir() / "train.yaml").read_text().splitlines()) <= 40


def test_the_task_stands_after_what_it_chooses_and_the_command_line_wins() -> None:
    order = list(group_defaults())
    assert order.index("task") > max(order.index("backbone"), order.index("recipe"))
    assert compose(["task=uea/japanese_vowels", "recipe=mvts"]).recipe.name == "mvts"


def test_the_package_list_is_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = [
        os.path.relpath(path.parent, ROOT / "src").replace(os.sep, ".") for path in ROOT.glob("src/**/__init__.py")
    ]
    assert sorted(listed) == sorted([*found, "reattend.configs"])
    modules = {path.parent for path in ROOT.glob("src/**/*.py")}
    assert all((folder / "__init__.py").is_file() for folder in modules)


@pytest.mark.slow
def test_a_wheel_carries_every_yaml_and_runs_from_it(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    (checkout / "README.md").write_text("# reattend\n")
    for name in ("src", "configs"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    subprocess.run(pip, cwd=checkout, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.endswith(".yaml")}
        archive.extractall(tmp_path / "installed")
    assert names == {f"reattend/configs/{name}.yaml" for name in FILES}
    code = (
        "from reattend.config import compose, config_dir, read\n"
        "assert 'installed' in str(config_dir()), config_dir()\n"
        "read(compose(['attention=bn_sh']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
