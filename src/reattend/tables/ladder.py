"""The fidelity ladder: each quirk of the followed code corrected alone, then all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reattend.config import compose, config_dir, read, to_dict
from reattend.config.loader import load_file
from reattend.config.overrides import override_text
from reattend.tables.table import Setting

_FIRST = ", published"  # ends the name of a ladder's first rung


def ladder_rows(rows: Mapping[str, Setting], others: Sequence[str]) -> dict[str, Setting]:
    """Each row with `fidelity=published`, with each switch of it turned to what `corrected` has, and with `corrected`.

    Switches that change nothing in a row's configuration on the given task are left out, and so is a row that none
    changes.

    Args:
        rows: of a table.
        others: the overrides of a column and of all cells, by which the task is known.

    Raises:
        ConfigError: a row cannot be composed with these.
    """
    found = {}
    for row, setting in rows.items():
        published = _configuration([*setting.overrides, *others, "fidelity=published"])
        acting = [
            switch
            for switch in _switches()
            if _configuration([*setting.overrides, *others, "fidelity=published", switch]) != published
        ]
        if acting:
            found[f"{row}{_FIRST}"] = Setting([*setting.overrides, "fidelity=published"])
            for switch in acting:
                name = switch.removeprefix("fidelity.")
                found[f"{row}, {name}"] = Setting([*setting.overrides, "fidelity=published", switch])
            found[f"{row}, corrected"] = Setting([*setting.overrides, "fidelity=corrected"])
    return found


def base_rows(rungs: Mapping[str, Setting]) -> dict[str, Setting]:
    """The rows that `ladder_rows` made these of."""
    return {
        name.removesuffix(_FIRST): Setting(setting.overrides[:-1])
        for name, setting in rungs.items()
        if name.endswith(_FIRST)
    }


def _switches() -> list[str]:
    """An override for each switch in which the two members of the group differ."""
    published, corrected = (
        _flat(load_file(config_dir() / "fidelity" / f"{name}.yaml")) for name in ("published", "corrected")
    )
    return [
        override_text(key, value)
        for key, value in corrected.items()
        if key != "fidelity.name" and value != published.get(key)
    ]


def _flat(group: Mapping[str, Any], path: str = "fidelity") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in group.items():
        found |= _flat(value, f"{path}.{key}") if isinstance(value, Mapping) else {f"{path}.{key}": value}
    return found


def _configuration(overrides: list[str]) -> dict[str, Any]:
    """What is built and trained: the configuration but for its label."""
    config = to_dict(read(compose(overrides)))
    return {key: value for key, value in config.items() if key != "fidelity"}
