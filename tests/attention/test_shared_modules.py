"""Modules that the layers of one backbone hold together."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from reattend.attention import LayeredMixerFactory, Mixer, MixerFactory, MixerSpec, MultiHeadAttention
from reattend.attention.linformer import Linformer

SPEC = MixerSpec(dim=8, num_heads=2, max_length=9, num_layers=3)
LAYERWISE = {"num_rows": 4, "sharing": "layerwise"}


class Stack(nn.Module):
    """Layers with residuals."""

    def __init__(self, factory: MixerFactory | LayeredMixerFactory, spec: MixerSpec = SPEC) -> None:
        super().__init__()
        self.layers = nn.ModuleList(factory(replace(spec, layer=layer)) for layer in range(spec.num_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x

    def rows(self) -> list[nn.Module]:
        return [layer.rows for layer in self.layers if isinstance(layer, Linformer)]


def all_one(modules: list[nn.Module]) -> bool:
    return all(module is modules[0] for module in modules)


def test_layers_of_a_backbone_hold_one_module() -> None:
    stack = Stack(MixerFactory(Linformer, LAYERWISE))
    assert all_one(stack.rows())
    alone = sum(p.numel() for p in Linformer(SPEC, **LAYERWISE).parameters())
    assert sum(p.numel() for p in stack.parameters()) == 3 * alone - 2 * 4 * 9


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value"])
def test_other_sharings_hold_their_own(sharing: str) -> None:
    rows = Stack(MixerFactory(Linformer, {"num_rows": 4, "sharing": sharing})).rows()
    assert len({id(module) for module in rows}) == 3


def test_the_next_backbone_gets_a_new_one() -> None:
    factory = MixerFactory(Linformer, LAYERWISE)
    first, second = Stack(factory), Stack(factory)
    assert all_one(first.rows())
    assert all_one(second.rows())
    assert first.rows()[0] is not second.rows()[0]
    longer = Stack(factory, replace(SPEC, max_length=12))
    assert longer.rows()[0].weight.shape[-1] == 12


def test_a_backbone_after_one_that_was_never_finished_gets_a_new_one() -> None:
    factory = MixerFactory(Linformer, LAYERWISE)
    started = factory(SPEC)
    assert Stack(factory).rows()[0] is not started.rows


def test_some_layers_of_a_backbone_hold_one_module() -> None:
    factory = LayeredMixerFactory(MixerFactory(Linformer, LAYERWISE), {0: MixerFactory(MultiHeadAttention)})
    first, second = Stack(factory), Stack(factory)
    assert len(first.rows()) == 2
    assert all_one(first.rows())
    assert all_one(second.rows())
    assert first.rows()[0] is not second.rows()[0]
    part = MixerFactory(Linformer, LAYERWISE)
    assert all_one(Stack(LayeredMixerFactory(MixerFactory(MultiHeadAttention), {0: part, -1: part})).rows())


def test_building_and_training_are_as_with_seeds_alone() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(0)
        states.append(Stack(MixerFactory(Linformer, LAYERWISE)).state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_gradients_of_all_layers_meet_in_it() -> None:
    stack = Stack(MixerFactory(Linformer, LAYERWISE)).double()
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    stack(x).square().sum().backward()
    together = stack.rows()[0].weight.grad
    parts = []
    for layer in range(3):
        apart = copy.deepcopy(stack)
        own = copy.deepcopy(apart.rows()[0])
        apart.layers[layer].use_shared(own)
        apart.zero_grad()
        apart(x).square().sum().backward()
        parts.append(own.weight.grad)
    assert together is not None
    assert torch.allclose(sum(parts), together, rtol=1e-10, atol=1e-12)


def test_copies_and_optimizers_see_one_parameter() -> None:
    stack = Stack(MixerFactory(Linformer, LAYERWISE))
    other = copy.deepcopy(stack)
    assert all_one(other.rows())
    assert other.rows()[0] is not stack.rows()[0]
    optimizer = torch.optim.SGD(stack.parameters(), lr=0.1)
    before = stack.rows()[0].weight.detach().clone()
    stack(torch.randn(2, 9, 8)).square().sum().backward()
    gradient = stack.rows()[0].weight.grad.clone()
    optimizer.step()
    assert torch.allclose(stack.rows()[0].weight, before - 0.1 * gradient, rtol=0, atol=1e-6)


def test_weights_come_back(tmp_path: Path) -> None:
    factory = MixerFactory(Linformer, LAYERWISE)
    stack, other = Stack(factory), Stack(factory)
    torch.save(stack.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert all_one(other.rows())
    x = torch.randn(2, 9, 8)
    assert torch.equal(stack(x), other(x))


def test_distributed_data_parallel_takes_it(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        stack = Stack(MixerFactory(Linformer, LAYERWISE))
        parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(stack))
        x = torch.randn(2, 9, 8)
        for model in (stack, parallel):
            model(x).square().sum().backward()
        got, wanted = parallel.module.rows()[0].weight.grad, stack.rows()[0].weight.grad
        assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()


def test_a_mixer_shares_nothing_unless_it_says_so() -> None:
    assert MultiHeadAttention.shared(SPEC) is None
    with pytest.raises(NotImplementedError, match="MultiHeadAttention shares nothing"):
        MultiHeadAttention(SPEC).use_shared(nn.Identity())


class WithSharedScale(Mixer):
    """A mixer of one's own with a module for all layers."""

    def __init__(self, spec: MixerSpec, *, start: float = 1.0) -> None:
        super().__init__()
        self.scale = self.shared(spec, start=start)

    @classmethod
    def capabilities(cls, **options):
        return MultiHeadAttention.capabilities()

    @classmethod
    def shared(cls, spec, *, start=1.0):
        return nn.ParameterList([torch.tensor(start)])

    def use_shared(self, module):
        self.scale = module

    def forward(self, x, padding_mask=None, context=None, context_mask=None):
        return self.scale[0] * x


def test_a_mixer_of_ones_own_shares_too() -> None:
    stack = Stack(MixerFactory(WithSharedScale, {"start": 2.0}))
    (scale,) = stack.parameters()
    assert scale.item() == 2.0
