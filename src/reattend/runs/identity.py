"""What makes two runs the same run: the fingerprint of a configuration, and the folder named after it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Every key of a run's configuration stands in exactly one of these two tables; a key stands for all below it, but for
# those below it that the other table names.
COUNTS = (
    "seed",
    "attention.target",
    "attention.options",  # beta, scales and window act through these
    "attention.loss_weights",
    "attention.default",  # of layers: what the name stands for, not the name
    "attention.at",
    "attention.parts",
    "backbone.target",
    "backbone.options",  # the task's dimensions act through these
    "backbone.pretrained.leave",
    "recipe.optimizer",
    "recipe.schedule",
    "recipe.epochs",
    "recipe.batch_size",
    "recipe.clip_norm",
    "recipe.eval_every_epochs",
    "recipe.dropout",
    "recipe.attention_dropout",
    "recipe.steps_per_epoch",
    "recipe.last_train_batch",
    "recipe.warmup_fraction",
    "recipe.momentum",
    "recipe.warmup_epochs",
    "recipe.warmup_steps",
    "recipe.warmup_lr",
    "recipe.min_lr",
    "recipe.cooldown_epochs",
    "recipe.schedule_lag",
    "recipe.drop_path",
    "recipe.ema_decay",
    "recipe.augmentation.crop_scale",
    "recipe.augmentation.flip",
    "recipe.augmentation.pad",
    "recipe.augmentation.color_jitter",
    "recipe.augmentation.auto_augment",
    "recipe.augmentation.random_erasing",
    "recipe.augmentation.repeats",
    "recipe.augmentation.mixup",
    "recipe.augmentation.cutmix",
    "recipe.augmentation.mix_probability",
    "recipe.augmentation.switch_probability",
    "recipe.augmentation.label_smoothing",
    "task.name",
    "task.target",
    "task.data_target",
    "task.dataset",
    "task.archive",
    "task.data_options",
    "task.metric",
    "fidelity",  # with their names, which label results: what is labelled differently is never one run
    "protocol",
    "scale.name",
    "data.name",
    "trainer.precision",
)
IGNORED = (
    "attention.name",
    "attention.summary",
    "attention.source",
    "attention.layer_losses",  # acts through the backbone's options
    "attention.last",  # acts through attention.at
    "attention.part_options",  # acts through attention.parts
    "beta",
    "scales",
    "window",
    "backbone.name",
    "backbone.summary",
    "backbone.source",
    "backbone.pretrained.weights",  # their content is a revision
    "recipe.name",
    "recipe.source",
    "fidelity.layer_losses",  # acts through the attention's, and that through the backbone's options
    "fidelity.primal",  # acts through the attention's options
    "fidelity.flowformer",  # acts through the backbone's options
    "fidelity.deit",  # acts through the recipe and the backbone's options
    "fidelity.lra",  # acts through the options of data and backbone, and the recipe
    "task.summary",
    "task.source",
    "task.dims",
    "task.dims_source",
    "task.lr",
    "task.weight_decay",
    "task.published",
    "task.quick",
    "task.data_options.file",  # its bytes are the data's checksum
    "task.selection",  # acts through the protocol's
    "scale.epochs",
    "scale.steps_per_epoch",
    "scale.batch_size",
    "scale.max_length",
    "scale.attention_dropout",
    "scale.warmup_epochs",
    "scale.warmup_steps",
    "scale.image_size",
    "scale.dim",  # acts through the backbone's options
    "scale.depth",  # likewise
    "scale.accumulation",
    "data.root",
    "trainer.name",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.strategy",
    "trainer.accumulation",
    "trainer.threads",
    "trainer.keep_freed_memory",
    "trainer.deterministic",
    "trainer.checkpoint_seconds",
    "trainer.loader_workers",
    "logger",
    "launcher",
    "compile",
    "rerun",
    "outputs",
)

# A key that is added after results exist names here the value that means "as before": with that value it is left
# out of the hash, so old results keep their fingerprint. `attention.options.*` holds for each mixer of `layers` too.
AS_BEFORE: dict[str, Any] = {
    "attention.loss_weights": {},
    "backbone.options.layer_losses": "mean",
    "backbone.pretrained.leave": [],
    "backbone.options.final_norm": False,
    "backbone.options.class_token_std": None,
    "backbone.options.padding_in_mixers": "masked",
    "recipe.steps_per_epoch": None,
    "recipe.last_train_batch": "kept",
    "recipe.warmup_fraction": 0.0,
    "recipe.momentum": "fixed",
    "recipe.warmup_epochs": 0,
    "recipe.warmup_steps": 0,
    "recipe.warmup_lr": 0.0,
    "recipe.min_lr": 0.0,
    "recipe.cooldown_epochs": 0,
    "recipe.schedule_lag": 0,
    "recipe.drop_path": 0.0,
    "recipe.ema_decay": None,
    "recipe.augmentation.crop_scale": None,
    "recipe.augmentation.flip": 0.0,
    "recipe.augmentation.pad": 0,
    "recipe.augmentation.color_jitter": 0.0,
    "recipe.augmentation.auto_augment": None,
    "recipe.augmentation.random_erasing": 0.0,
    "recipe.augmentation.repeats": 1,
    "recipe.augmentation.mixup": 0.0,
    "recipe.augmentation.cutmix": 0.0,
    "recipe.augmentation.mix_probability": 1.0,
    "recipe.augmentation.switch_probability": 0.5,
    "recipe.augmentation.label_smoothing": 0.0,
    "recipe.optimizer.decays": "matrices",
    "task.data_options": {},
    "task.data_options.resolution": 32,
}


def fingerprint(config: Mapping[str, Any], data_checksum: str, revisions: Mapping[str, int]) -> str:
    """First 12 hexadecimal digits of SHA-256 over all that changes a run's number.

    Args:
        config: the run's configuration as nested dictionaries, resolved.
        data_checksum: of the prepared data, or of the stand-in.
        revisions: of the mechanism, task, ... by name, raised by a fix that changes results; 0 is the same as absent.

    Raises:
        KeyError: a key stands in neither `COUNTS` nor `IGNORED`.
        ValueError: there is no data checksum, so the run has no identity yet.
    """
    if not data_checksum:
        raise ValueError("a run has no fingerprint before its data has a checksum")
    identity = {
        "config": _selected(config),
        "data": data_checksum,
        "revisions": {name: revision for name, revision in revisions.items() if revision},
    }
    return hashlib.sha256(_canonical_json(identity).encode()).hexdigest()[:12]


def counts(key: str) -> bool:
    """Whether a key of a run's configuration, such as "recipe.epochs", can change its number."""
    known = {path for path in (*COUNTS, *IGNORED) if key == path or key.startswith(f"{path}.")}
    return bool(known) and max(known, key=len) in COUNTS


def run_folder(outputs: str | Path, config: Mapping[str, Any], fingerprint: str) -> Path:
    """<outputs>/runs/<task>/<attention>/<backbone>/s<seed>-<fingerprint>; a custom attention shows its class."""
    attention = config["attention"]["name"]
    if attention == "custom":
        attention = f"custom-{config['attention']['target'].rpartition('.')[2]}"
    task, backbone = config["task"]["name"], config["backbone"]["name"]
    return Path(outputs, "runs", task, attention, backbone, f"s{config['seed']}-{fingerprint}")


def _selected(config: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for group, entries in config.items():
        for path, value in _classified(group, entries):
            kept = _without_as_before(path, value)
            if path.partition(".")[0] != "attention" and not _is_as_before(path, kept):
                chosen[path] = kept
    return chosen | {"attention": _attention(config["attention"])}


def _classified(path: str, value: Any) -> list[tuple[str, Any]]:
    """The parts of `value` that count, by the path under which `COUNTS` has them."""
    if path in IGNORED:
        return []
    if path in COUNTS:
        return [(path, value)]
    if not isinstance(value, Mapping):
        raise KeyError(f"'{path}' is neither in COUNTS nor in IGNORED: say whether it changes a run's number")
    return [found for key, entry in value.items() for found in _classified(f"{path}.{key}", entry)]


def _attention(config: Mapping[str, Any]) -> dict[str, Any]:
    chosen = _mixer(config)
    if config.get("default") is not None:
        chosen["default"] = _mixer(config["parts"][config["default"]])
        chosen["at"] = {str(layer): _mixer(config["parts"][name]) for layer, name in config["at"].items()}
    return chosen


def _mixer(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the mechanism is built from and trained with, the same for one alone and for a part of layers."""
    keys = ("target", "options", "loss_weights")
    return {
        key: _without_as_before(f"attention.{key}", config[key])
        for key in keys
        if key in config and not _is_as_before(f"attention.{key}", config[key])
    }


def _without_as_before(path: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        key: _without_as_before(f"{path}.{key}", entry)
        for key, entry in value.items()
        if f"{path}.{key}" not in IGNORED and not _is_as_before(f"{path}.{key}", entry)
    }


def _is_as_before(path: str, value: Any) -> bool:
    return path in AS_BEFORE and _canonical_json(AS_BEFORE[path]) == _canonical_json(value)


def _canonical_json(value: Any) -> str:
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"))


def _canonical(value: Any) -> Any:
    """Plain data in which equal numbers look equal: 1.0 becomes 1; true stays distinct from 1, and "1" too."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): _canonical(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(entry) for entry in value]
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"a configuration holds plain data only, found {type(value).__name__}: {value!r}")
