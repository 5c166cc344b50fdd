"""Operators of our own give what they promise a compiler: outputs of the shapes, types and strides of their fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_files import NAMES, factory
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from reattend.attention import split_losses
from tests.attention.test_contract import PLACES, fitting


class Promises(TorchDispatchMode):
    """Collects calls of our operators whose outputs are other than those without values say."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace == "reattend":
            with FakeTensorMode() as fake:
                promised = func(*tree_map_only(Tensor, fake.from_tensor, args), **(kwargs or {}))
            for real, said in zip(tree_leaves(found), tree_leaves(promised), strict=True):
                if looks(real) != looks(said):
                    self.broken.append(f"{func}: {looks(real)}, promised {looks(said)}")
        return found


def looks(x: Tensor) -> Any:
    """Strides of axes of one place mean nothing."""
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    return tuple(x.shape), x.dtype, strides


@pytest.mark.parametrize(("name", "place"), [(name, place) for name in NAMES for place in fitting(name)])
def test_outputs_are_what_a_compiler_is_told(name: str, place: str) -> None:
    spec = PLACES[place]
    torch.manual_seed(0)
    mixer = factory(name, spec.num_heads)(spec)
    x = torch.randn(2, spec.max_length, spec.dim, requires_grad=True)
    with Promises() as promises:
        y, _ = split_losses(mixer(x))
        y.square().sum().backward()
    assert promises.broken == []
