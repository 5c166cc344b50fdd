"""Weights that a vision transformer starts from: of timm, of a file, or of a run."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reattend.backbones.timm_models import TIMM, check_timm_name, timm_model
from reattend.errors import ReattendError
from reattend.runs.checkpoints import read_torch
from reattend.runs.files import read_json
from reattend.runs.load import DESCRIPTION

# What can be left to start anew, with the ends of the names of its parameters; parts of `qkv` are its rows.
ROWS = ("query", "key", "value")
PARTS = {"positions": "pos_embed", "class_token": "cls_token", "output": "attn.proj", "head": "head"}
_REMEDY = "Name another with backbone.pretrained.weights=, or null for random weights."
_CONTENT = ("state_dict", "model")


@dataclass(frozen=True)
class Weights:
    """A state dictionary by timm's names, and the number of heads of its attention where that is known."""

    state: Mapping[str, Tensor]
    num_heads: int | None


@dataclass(frozen=True)
class Start:
    """What became of a model's parameters: names as in its state dictionary, "[query]" behind those of single rows.

    Attributes:
        weights: where they are from.
        taken: parameters that start with them.
        anew: parameters that start as they would without.
        unused: names of theirs that the model has not.
        assumed_heads: heads that their queries and keys are taken to be of, where the weights do not say.
    """

    weights: str
    taken: list[str]
    anew: list[str]
    unused: list[str]
    assumed_heads: int | None = None

    def __str__(self) -> str:
        told = {"taken": self.taken, "anew": self.anew, "of theirs unused": self.unused}
        lines = [f"  {what} ({len(names)}): {_by_layer(names)}" for what, names in told.items() if names]
        if self.assumed_heads is not None:
            lines.append(f"  heads cannot be told from a file: {self.assumed_heads} assumed, as the model has")
        return "\n".join([f"Starting from {self.weights}", *lines])


def read_weights(weights: str) -> Weights:
    """Reads "timm:<model>", a `.safetensors`, `.pth` or `.pt` file, or the folder of a finished run (its best epoch).

    Raises:
        ReattendError: there are none, or they are not readable.
    """
    if weights.startswith(TIMM):
        return _of_timm(weights.removeprefix(TIMM))
    path = Path(weights)
    if path.is_dir():
        if not (path / DESCRIPTION).is_file():
            raise ReattendError(
                f"backbone.pretrained.weights={weights}: this is no folder of a finished run. {_REMEDY}"
            )
        description = read_json(path / DESCRIPTION, _REMEDY)
        heads = description["config"]["backbone"]["options"].get("num_heads")
        return Weights(_state(read_torch(path / "model_best.pt", _REMEDY), path), heads)
    if not path.is_file():
        raise ReattendError(
            f"backbone.pretrained.weights={weights}: there is no such file or folder of a run. {_REMEDY}"
        )
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return Weights(load_file(path), None)
        except (SafetensorError, OSError) as error:
            raise ReattendError(f"{path} cannot be read ({error}). {_REMEDY}") from error
    if path.suffix in (".pth", ".pt"):
        return Weights(_state(read_torch(path, _REMEDY), path), None)
    raise ReattendError(f"{path} is no .safetensors, .pth or .pt file, and no folder of a run. {_REMEDY}")


def revision(weights: str) -> int:
    """A number that changes with the content that `weights` names, for the identity of runs.

    Raises:
        ReattendError: there is no such file or folder, or timm has no weights of that name.
    """
    if weights.startswith(TIMM):
        check_timm_name(weights.removeprefix(TIMM))
        return int.from_bytes(hashlib.sha256(weights.encode()).digest()[:6], "big")
    path = Path(weights)
    file = path / "model_best.pt" if path.is_dir() else path
    try:
        with open(file, "rb") as opened:
            return int.from_bytes(hashlib.file_digest(opened, "sha256").digest()[:6], "big")
    except OSError as error:
        message = f"backbone.pretrained.weights={weights}: {file} cannot be read: {error.strerror}. {_REMEDY}"
        raise ReattendError(message) from error


def start_from(model: nn.Module, weights: str, leave: Sequence[str], num_heads: int) -> Start:
    """Copies all weights that have a place in `model` and are not left.

    A parameter is taken if its name and shape are there; of `qkv` the rows of query, key and value are taken each by
    itself, so that a mixer with another key still starts with the values. Positions of another grid are resampled.

    Args:
        model: a `VisionTransformer`, changed in place.
        weights: see `read_weights`.
        leave: of `ROWS` and `PARTS`, what is to start anew.
        num_heads: of the model.

    Raises:
        ReattendError: they cannot be read; nothing fits; queries and keys would be taken from attention with another
            number of heads, for which the same rows mean something else.
    """
    found = read_weights(weights)
    if found.num_heads not in (None, num_heads) and not {"query", "key"} <= set(leave):
        raise ReattendError(
            f"backbone.pretrained.weights={weights} are of {found.num_heads} heads, the model has {num_heads}, which"
            f" would cut the same queries and keys otherwise: backbone.options.num_heads={found.num_heads}, or"
            " backbone.pretrained.leave=[query,key]."
        )
    taken: list[str] = []
    anew: list[str] = []
    state = model.state_dict()
    with torch.no_grad():
        for name, own in state.items():
            theirs = found.state.get(name)
            if ".attn.qkv." in name and theirs is not None:
                attention = model.get_submodule(name.partition(".qkv.")[0])
                for row, fits in _copy_rows(own, theirs, attention, leave):
                    (taken if fits else anew).append(f"{name}[{row}]")
            elif theirs is not None and not _is_left(name, leave) and _copy(name, own, theirs, model):
                taken.append(name)
            else:
                anew.append(name)
    if not taken:
        raise ReattendError(f"nothing of {weights} fits the model: other names or widths. {_REMEDY}")
    cut = any(name.endswith(("[query]", "[key]")) for name in taken)
    assumed = num_heads if found.num_heads is None and cut else None
    return Start(weights, taken, anew, sorted(found.state.keys() - state.keys()), assumed)


def _copy(name: str, own: Tensor, theirs: Tensor, model: Any) -> bool:
    if name == "pos_embed" and own.shape != theirs.shape and own.shape[-1] == theirs.shape[-1]:
        from timm.layers import resample_abs_pos_embed

        prefix = model.num_prefix_tokens
        if math.isqrt(theirs.shape[1] - prefix) ** 2 != theirs.shape[1] - prefix:
            return False  # of another number of class tokens
        theirs = resample_abs_pos_embed(theirs, new_size=[model.grid, model.grid], num_prefix_tokens=prefix)
    if own.shape != theirs.shape:
        return False
    own.copy_(theirs)
    return True


def _copy_rows(own: Tensor, theirs: Tensor, attention: nn.Module, leave: Sequence[str]) -> list[tuple[str, bool]]:
    """Copies the rows of query, key and value that have the same shape; which were."""
    widths = list(getattr(attention, "qkv_dims", [len(own) // 3] * 3))
    # Of the same mixer, or of timm's attention, whose three parts are of one width.
    others = widths if len(theirs) == len(own) else [len(theirs) // 3] * 3
    if sum(others) != len(theirs):
        return [(row, False) for row in ROWS]
    copied = []
    for row, mine, other in zip(ROWS, own.split(widths), theirs.split(others), strict=True):
        if not len(mine):
            continue
        fits = row not in leave and mine.shape == other.shape
        if fits:
            mine.copy_(other)
        copied.append((row, fits))
    return copied


def _is_left(name: str, leave: Sequence[str]) -> bool:
    ends = [PARTS[part] for part in leave if part in PARTS]
    return any(name == end or f".{end}." in f".{name}." for end in ends)


def _of_timm(name: str) -> Weights:
    model = timm_model(name, "Or name a file that you have: backbone.pretrained.weights=<file>.pth")
    heads: list[Any] = [module.num_heads for module in model.modules() if hasattr(module, "num_heads")]
    return Weights(model.state_dict(), heads[0] if heads else None)


def _state(content: Any, path: Path) -> Mapping[str, Tensor]:
    for key in _CONTENT:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ReattendError(f"{path} holds no weights by name, nor has them under {' or '.join(_CONTENT)}. {_REMEDY}")
    return content


def _by_layer(names: Sequence[str]) -> str:
    """Names with the numbers of their blocks put together: "blocks.0-11.norm1.weight, head.bias"."""
    blocks: dict[str, list[int]] = {}
    for name in names:
        number = re.match(r"blocks\.(\d+)\.", name)
        blocks.setdefault(re.sub(r"^blocks\.\d+\.", "blocks.*.", name), []).extend([int(number[1])] if number else [])
    shown = []
    for name, numbers in blocks.items():
        whole = f"{min(numbers)}-{max(numbers)}" if len(numbers) > 1 else "".join(map(str, numbers))
        together = not numbers or len(numbers) == max(numbers) - min(numbers) + 1
        shown.append(name.replace("*", whole if together else ",".join(map(str, sorted(numbers)))))
    return ", ".join(shown)
