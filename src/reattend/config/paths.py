"""Where the YAML files lie."""

from __future__ import annotations

from pathlib import Path


def config_dir() -> Path:
    """The `configs/` folder of the checkout that this package runs from, else the copy inside the installed package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    if package.parent.name == "src" and (checkout / "configs" / "train.yaml").is_file():
        return checkout / "configs"
    return package / "configs"
