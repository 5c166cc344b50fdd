"""What a person reads at the end of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from reattend.config.schema import RunConfig
from reattend.runs.result import Result, Selected
from reattend.train.logger import logger_hint

_RULES = {
    "last": "last epoch",
    "best_on_test": "best on test",
    "best_on_validation": "best on validation",
}


def summary(result: Result, config: RunConfig, folder: Path, overrides: Sequence[str]) -> str:
    """Metrics by selection rule, settings, stamps, cost, the folder and the next command, as lines."""
    lines = [f"{result.attention} on {config.task.dataset or result.task} ({result.task}), seed {result.seed}"]
    lines += [f"  {_RULES[rule]:<19} {_selected(selected)}" for rule, selected in result.metrics.items()]
    if "best_on_test" in result.metrics:
        lines.append("  (protocol=published selects its best epoch on test; protocol=strict does not)")
    lines += [f"  {stamp}" for stamp in [*_settings(config), *_stamps(result)]]
    lines.append(
        f"  {result.parameters:,} parameters, {(result.flops or 0) / 1e6:,.1f} MFLOP a sample, {result.seconds:.1f} s,"
        f" peak memory {(result.peak_memory or 0) / 2**20:,.0f} MiB"
    )
    lines.append(f"  {folder}")
    hint = logger_hint(config.logger, folder)
    lines += [f"  {hint}"] if hint else []
    same = [shlex.quote(o.removeprefix("++")) for o in overrides if not o.startswith(("seed=", "search=", "rerun="))]
    lines.append(f"Next, five seeds: {' '.join(['python train.py -m search=seeds', *same])}")
    return "\n".join(lines)


def _settings(config: RunConfig) -> list[str]:
    """Published settings that the attention takes, and whether they are the paper's or assumed."""
    parts = config.attention.parts.values() or [config.attention]
    used = {slot for part in parts for slot in part.options}
    settings = []
    if "recenter" in used:
        settings.append(
            f"beta {'starts at ' if config.beta.learnable else ''}{config.beta.value} ({config.beta.source})"
        )
    if "scaled_heads" in used:
        settings.append(f"scales {config.scales.value} ({config.scales.source})")
    return settings


def _selected(selected: Selected) -> str:
    shown = "  ".join(f"{name} {value:.4f}" for name, value in selected.metrics.items())
    return f"{shown}  (epoch {selected.epoch})"


def _stamps(result: Result) -> list[str]:
    stamps = [f"fidelity={result.fidelity['name']} protocol={result.protocol} scale={result.scale} data={result.data}"]
    if result.scale == "quick" or result.data == "standin":
        stamps.append("Not to be compared with published numbers: quick scale or stand-in data.")
    return stamps
