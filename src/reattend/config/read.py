"""From a composed configuration to its typed form, and to and from disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig

from reattend.config.binding import UNREADABLE, bind_dataclass, convert, unbind
from reattend.config.instantiate import build_problems
from reattend.config.loader import load_file
from reattend.config.pairing import pairing_problems
from reattend.config.problems import refuse, suggestion
from reattend.config.resolve import LAYERED, attention_within, plain_attentions, resolved
from reattend.config.schema import RunConfig

_MISSING_SIZE = re.compile(r"Interpolation key 'task\.dims\.\w+' not found")


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
    problems[:] = _backbone_without_settings(_recipe_without_settings(problems, tree), tree)
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


def _recipe_without_settings(problems: list[str], tree: Mapping[str, Any]) -> list[str]:
    """The same problems, with one in place of those of a recipe that takes its settings from another kind of task."""
    names = {
        group: tree[group].get("name") if isinstance(tree.get(group), dict) else None for group in ("recipe", "task")
    }
    settings = f"task.published.{names['recipe']}"
    rest = [problem for problem in problems if f"Interpolation key '{settings}." not in problem]
    if len(rest) == len(problems):
        return problems
    return [
        f"recipe={names['recipe']}: task={names['task']} has no settings for it ({settings}). Without recipe=... it is"
        " trained by its own.",
        *rest,
    ]


def _backbone_without_settings(problems: list[str], tree: Mapping[str, Any]) -> list[str]:
    """The same problems, with one in place of those of a backbone that takes its sizes from another kind of task."""
    found = [problem for problem in problems if problem.startswith("backbone.") and _MISSING_SIZE.search(problem)]
    rest = [problem for problem in problems if problem not in found]
    if not found:
        return problems
    misfit = pairing_problems(tree)
    if misfit:
        return [*misfit, *rest]
    backbone, task = (tree[group].get("name") for group in ("backbone", "task"))
    keys = [problem.partition(":")[0] for problem in found]
    return rest + [
        f"{key}: backbone={backbone} takes it from the task, and task={task} names none: {key}=..." for key in keys
    ]


def _fill_parts(tree: dict[str, Any], problems: list[str]) -> None:
    """Adds what a composition by layers names: its parts, as they are with everything else in `tree`.

    The last layers are written out by index, and factors of losses that the parts bring are added where the composition
    has none of its own.
    """
    attention = tree["attention"]
    name = attention.get("name")
    if attention.get("target") != LAYERED:
        for key in ("default", "at", "last", "part_options"):
            if attention.get(key):
                problems.append(f"attention.{key}: only attention=layers has it, this is attention={name}")
        return
    if attention.get("options"):
        named_parts = [*(attention.get("last") or {}), attention.get("default")]
        problems.append(
            f"attention.options: attention={name} has none of its own; those of a part are"
            f" attention.part_options.{named_parts[0]}.<option>"
        )
    at = attention.get("at") or {}
    if isinstance(at, Mapping):
        attention["at"] = at = _last_layers(attention.get("last"), problems) | dict(at)
    named = {"attention.default": attention.get("default")}
    if isinstance(at, Mapping):
        named |= {f"attention.at[{layer}]": part for layer, part in at.items()}
    readable = not problems
    known = plain_attentions()
    changes = attention.get("part_options") or {}
    parts: dict[str, Any] = {}
    for path, part in named.items():
        if part is UNREADABLE:
            continue
        if part not in known:
            problems.append(f"{path}: no attention '{part}' for a layer.{suggestion(part, known, 'There are')}")
        elif readable and part not in parts:
            parts[part] = _merged(attention_within(tree, part, problems), {"options": changes.get(part) or {}})
    attention["parts"] = parts
    if not problems:
        unused = [part for part in changes if part not in parts]
        problems += [f"attention.part_options.{part}: no layer has attention {part}" for part in unused]
        attention["loss_weights"] = _loss_weights(parts, problems, attention.get("loss_weights") or {})


def _last_layers(last: Any, problems: list[str]) -> dict[int, str]:
    """Layers -1, -2, ... of the one attention in `last`; what is no mapping to whole numbers is told on binding."""
    if not isinstance(last, Mapping):
        return {}
    if len(last) > 1:
        first, *others = map(str, last)
        problems.append(
            f"attention.last: one attention can have the last layers, not {' and '.join(map(str, last))}; to have"
            f" another than {first}, remove it with '~attention.last.{first}' and write '+attention.last.{others[0]}=1'"
        )
    return {
        -layer: name
        for name, count in last.items()
        if isinstance(count, int) and not isinstance(count, bool)
        for layer in range(1, count + 1)
    }


def _merged(values: Any, changes: Mapping[str, Any]) -> Any:
    """`values` with those of `changes` in their place, mapping by mapping."""
    if not isinstance(values, Mapping):
        return changes or values
    inner = {
        key: _merged(values.get(key), change) if isinstance(change, Mapping) else change
        for key, change in changes.items()
    }
    return {**values, **inner}


def _loss_weights(parts: Mapping[str, Any], problems: list[str], own: Mapping[str, Any]) -> dict[str, Any]:
    """Factors by loss, those of the parts first; two parts that differ about one need one in `own`."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        for loss, factor in (part.get("loss_weights") or {}).items():
            if found.setdefault(loss, factor) != factor and loss not in own:
                problems.append(
                    f"attention.loss_weights.{loss}: {name} has {factor} and another layer {found[loss]}: give one"
                )
    return found | dict(own)


def _conflicts(groups: Mapping[str, Any]) -> list[str]:
    """Settings that are right each by itself and wrong together."""
    texts = {"outputs": groups["outputs"], "data.root": getattr(groups["data"], "root", UNREADABLE)}
    found = [f"{path} is empty" for path, text in texts.items() if text == ""]
    recipe, trainer = groups["recipe"], groups["trainer"]
    if UNREADABLE in (recipe, trainer):
        return found
    crop = recipe.augmentation.crop_scale
    if crop is not None and crop[0] > crop[1]:
        found.append(
            f"recipe.augmentation.crop_scale: the least share comes first: [{crop[1]},{crop[0]}], not"
            f" [{crop[0]},{crop[1]}]"
        )
    shares = trainer.devices * trainer.accumulation
    if recipe.batch_size % shares:
        found.append(
            f"recipe.batch_size: {recipe.batch_size} is not divisible by {shares} = trainer.devices x accumulation"
        )
    if trainer.accelerator == "cpu" and trainer.strategy == "fsdp":
        found.append("trainer.strategy: fsdp needs trainer.accelerator=gpu; several processes on a CPU are trainer=ddp")
    if recipe.ema_decay is not None and trainer.strategy == "fsdp":
        found.append(
            "recipe.ema_decay: the average needs all weights in one process, not trainer=fsdp: null, or trainer=ddp"
        )
    if recipe.schedule == "cosine" and recipe.warmup_epochs + recipe.cooldown_epochs >= recipe.epochs:
        found.append(
            f"recipe.epochs: {recipe.epochs} leave none between recipe.warmup_epochs={recipe.warmup_epochs} and"
            f" recipe.cooldown_epochs={recipe.cooldown_epochs}: fewer of these, such as recipe.warmup_epochs=0"
        )
    if trainer.accelerator == "cpu" and trainer.precision == "16-mixed":
        found.append("trainer.precision: 16-mixed needs trainer.accelerator=gpu; on a CPU take bf16-mixed")
    return found
