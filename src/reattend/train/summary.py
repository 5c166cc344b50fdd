"""What a person reads at the end of a run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reattend.config.loader import load_file
from reattend.config.paths import config_dir
from reattend.config.reach import overrides_read
from reattend.config.schema import AttentionConfig, BetaConfig, PublishedValue, RunConfig, ScalesConfig, WindowConfig
from reattend.runs.result import Result, Selected
from reattend.train.logger import logger_hint
from reattend.train.stamps import stamps

_RULES = {
    "last": "last epoch",
    "best_on_test": "best on test",
    "best_on_validation": "best on validation",
}
_BY_DEFAULT = {"scales": "scales none: whole heads", "window": "window of the mechanism's own choice"}
_POOL = re.compile(r"\$\{oc\.select:task\.published\.pool\.value,(\d+)\}")


def summary(result: Result, config: RunConfig, folder: Path, overrides: Sequence[str]) -> str:
    """Metrics by selection rule, settings, stamps, cost, the folder and the next command, as lines."""
    lines = [f"{result.attention} on {config.task.dataset or result.task} ({result.task}), seed {result.seed}"]
    lines += [f"  {_RULES[rule]:<19} {_selected(selected)}" for rule, selected in result.metrics.items()]
    if "best_on_test" in result.metrics:
        lines.append("  (protocol=published selects its best epoch on test; protocol=strict does not)")
    lines += [f"  {stamp}" for stamp in [*_settings(config, overrides), *stamps(result, config, overrides)]]
    lines.append(
        f"  {result.parameters:,} parameters, {(result.flops or 0) / 1e6:,.1f} MFLOP a sample, {result.seconds:.1f} s,"
        f" peak memory {(result.peak_memory or 0) / 2**20:,.0f} MiB"
    )
    lines.append(f"  {folder}")
    hint = logger_hint(config.logger, folder)
    lines += [f"  {hint}"] if hint else []
    same = [o for o in overrides if not o.startswith(("seed=", "search=", "rerun="))]
    same = [shlex.quote(override.removeprefix("++")) for override in overrides_read(same)]
    lines.append(f"Next, five seeds: {' '.join(['python train.py -m search=seeds', *same])}")
    return "\n".join(lines)


def trial_summary(result: Result, folder: Path) -> str:
    """Of a trial of a search: what it is compared by, and the folder; nothing of test."""
    best = result.metrics["best_on_validation"]
    shown = "  ".join(f"{name} {value:.4f}" for name, value in best.metrics.items() if name.startswith("val/"))
    return f"{result.attention} on {result.task}, seed {result.seed}: {shown}  (epoch {best.epoch})\n  {folder}"


def _settings(config: RunConfig, overrides: Sequence[str]) -> list[str]:
    """Published settings that the attention's YAML file takes, and whether they are the paper's, assumed or chosen.

    Chosen is what `overrides` replace, in the group or in the attention's options.
    """
    typed = {override.lstrip("+").partition("=")[0] for override in overrides}
    groups: dict[str, BetaConfig | ScalesConfig | WindowConfig] = {
        "beta": config.beta,
        "scales": config.scales,
        "window": config.window,
    }
    names = {"beta": "beta starts at"} if config.beta.learnable else {}
    found = []
    for part in config.attention.parts.values() or [config.attention]:
        for written, value in _written(_yaml_options(part), part.options):
            name = next((name for name in groups if written == f"${{{name}.value}}"), None)
            if name is not None:
                usual, source = groups[name].value, groups[name].source
                shown = _BY_DEFAULT[name] if value is None else f"{names.get(name, name)} {value}"
            elif pool := _POOL.fullmatch(str(written)):
                published = config.task.published.get("pool", PublishedValue(int(pool[1]), "assumed"))
                usual, source, shown = published.value, published.source, f"pooled windows of {value} tokens"
            else:
                continue
            found.append(f"{shown} ({'chosen' if value != usual or f'{name}.value' in typed else source})")
    return list(dict.fromkeys(found))


def _yaml_options(attention: AttentionConfig) -> Mapping[str, Any]:
    """Options of the attention with interpolations as its YAML file has them; none for a file that is not ours."""
    path = config_dir() / "attention" / f"{attention.name}.yaml"
    options: Mapping[str, Any] = load_file(path).get("options", {}) if path.is_file() else {}
    return options


def _written(options: Any, values: Any) -> Iterator[tuple[Any, Any]]:
    """Each scalar of a YAML file's `options` with the one at its place in `values`, where there is one."""
    if not isinstance(options, Mapping):
        yield options, values
    elif isinstance(values, Mapping):
        for name in options:
            if name in values:
                yield from _written(options[name], values[name])


def _selected(selected: Selected) -> str:
    shown = "  ".join(f"{name} {value:.4f}" for name, value in selected.metrics.items())
    return f"{shown}  (epoch {selected.epoch})"
