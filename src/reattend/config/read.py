"""From a composed configuration to its typed form, and to and from disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig

from reattend.config.binding import UNREADABLE, bind_dataclass, convert, unbind
from reattend.config.instantiate import build_problems
from reattend.config.loader import load_file
from reattend.config.problems import refuse, suggestion
from reattend.config.resolve import attention_within, plain_attentions, resolved
from reattend.config.schema import RunConfig


def read(cfg: DictConfig) -> RunConfig:
    """The typed form of a composed configuration, with the parts of `attention=layers` filled in.

    Raises:
        ConfigError: with every mistake: interpolations that fail, unknown or missing keys, wrong types, values outside
            their limits, settings that exclude each other; and, if there are any, what `check_run` finds in the rest.
    """
    problems: list[str] = []
    tree, groups = _bound(cfg, problems)
    if problems:
        refuse([*problems, *build_problems(groups, tree)])
    return RunConfig(**groups)


def reading_problems(cfg: DictConfig, *, build: bool) -> list[str]:
    """What `read` would refuse, and with `build` what `check_run` would, as a list."""
    problems: list[str] = []
    tree, groups = _bound(cfg, problems)
    return [*problems, *(build_problems(groups, tree) if build else [])]


def to_dict(run: RunConfig) -> dict[str, Any]:
    """Plain dictionaries, lists and scalars that `from_dict` turns back into an equal configuration."""
    plain = unbind(run)
    assert isinstance(plain, dict)
    return plain


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `to_dict` gave.

    Raises:
        ConfigError: with everything that does not fit the schema.
    """
    problems: list[str] = []
    run = bind_dataclass(RunConfig, values, "", problems)
    refuse(problems)
    assert isinstance(run, RunConfig)
    return run


def from_file(path: Path) -> RunConfig:
    """The configuration in a run folder's `config.json`.

    Raises:
        ConfigError: the file is missing, no YAML, or does not fit the schema.
    """
    return from_dict(load_file(path))


def _bound(cfg: DictConfig, problems: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The resolved tree and the typed value of each top-level key, `UNREADABLE` where there is a problem."""
    tree = resolved(cfg, "", problems)
    if isinstance(tree.get("attention"), dict):
        _fill_parts(tree, problems)
    hints = get_type_hints(RunConfig, include_extras=True)
    for name in tree:
        if name not in hints:
            problems.append(f"{name}: no such group or key.{suggestion(name, hints, 'Valid names')}")
    problems += [f"{name}: missing" for name in hints if name not in tree]
    groups = {name: convert(tree.get(name, UNREADABLE), hint, name, problems) for name, hint in hints.items()}
    problems += _conflicts(groups)
    return tree, groups


def _fill_parts(tree: dict[str, Any], problems: list[str]) -> None:
    """Adds the attentions that `attention=layers` names, as they are with everything else in `tree`."""
    attention = tree["attention"]
    default, at = attention.get("default"), attention.get("at") or {}
    if attention.get("name") != "layers":
        for key in ("default", "at"):
            if attention.get(key):
                problems.append(
                    f"attention.{key}: only attention=layers has it, this is attention={attention.get('name')}"
                )
        return
    if attention.get("options"):
        problems.append("attention.options: attention=layers has none of its own")
    named = {"attention.default": default}
    if isinstance(at, Mapping):
        named |= {f"attention.at[{layer}]": name for layer, name in at.items()}
    readable = not problems
    known = plain_attentions()
    parts = {}
    for path, name in named.items():
        if name is UNREADABLE:
            continue
        if name not in known:
            problems.append(f"{path}: no attention '{name}' for a layer.{suggestion(name, known, 'There are')}")
        elif readable:
            parts[name] = attention_within(tree, name, problems)
    attention["parts"] = parts


def _conflicts(groups: Mapping[str, Any]) -> list[str]:
    """Settings that are right each by itself and wrong together."""
    texts = {"outputs": groups["outputs"], "data.root": getattr(groups["data"], "root", UNREADABLE)}
    found = [f"{path} is empty" for path, text in texts.items() if text == ""]
    recipe, trainer = groups["recipe"], groups["trainer"]
    if UNREADABLE in (recipe, trainer):
        return found
    shares = trainer.devices * trainer.accumulation
    if recipe.batch_size % shares:
        found.append(
            f"recipe.batch_size: {recipe.batch_size} is not divisible by {shares} = trainer.devices x accumulation"
        )
    if trainer.accelerator == "cpu" and trainer.strategy == "fsdp":
        found.append("trainer.strategy: fsdp needs trainer.accelerator=gpu; several processes on a CPU are trainer=ddp")
    if trainer.accelerator == "cpu" and trainer.precision == "16-mixed":
        found.append("trainer.precision: 16-mixed needs trainer.accelerator=gpu; on a CPU take bf16-mixed")
    return found
