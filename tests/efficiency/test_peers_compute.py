"""Packages of AFT and lambda layers: with our weights they compute what ours does, and fail where the caveats say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reattend.attention import Mixer
from reattend.efficiency.arguments import Shape
from reattend.efficiency.ours import candidate
from reattend.efficiency.peers import PEERS, Peer

SHAPE = Shape(length=64, dim=16, heads=2, batch_size=3, causal=False)


def _pair(name: str) -> tuple[Mixer, nn.Module]:
    """Ours and theirs, both with initial values of their own."""
    peer: Peer = next(peer for peer in PEERS if peer.attention == name)
    if peer.missing():
        pytest.skip(peer.missing())
    ours = candidate(name, peer.overrides, SHAPE, on_grid=peer.on_grid)
    return ours.build(), peer.layer(ours.spec)


def _aft(name: str) -> tuple[Mixer, nn.Module]:
    """Both with the weights of theirs."""
    ours, theirs = _pair(name)
    parts = [theirs.to_q, theirs.to_k, theirs.to_v]
    weights = {f"qkv.{kind}": torch.cat([getattr(part, kind) for part in parts]) for kind in ("weight", "bias")}
    weights |= {f"proj.{kind}": getattr(theirs.project, kind) for kind in ("weight", "bias")}
    if name == "aft_full":
        weights["bias.weight"] = theirs.wbias
    if name == "aft_local":
        offsets = torch.arange(-31, 32) + torch.arange(64)[:, None]
        weights["bias.weight"] = theirs.wbias.gather(1, offsets.clamp(0, 63))
    ours.load_state_dict(weights)
    return ours, theirs


def _tokens() -> Tensor:
    return torch.randn(3, 64, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["aft_full", "aft_local", "aft_simple"])
def test_the_aft_of_aft_pytorch_is_ours(name: str) -> None:
    ours, theirs = _aft(name)
    torch.testing.assert_close(ours(_tokens()), theirs(_tokens()), rtol=1e-4, atol=1e-5)


def test_the_lambda_layer_of_lambda_networks_is_ours() -> None:
    ours, theirs = (layer.double() for layer in _pair("lambda"))
    layer = theirs.layer
    with torch.no_grad():
        parts = [layer.to_q, layer.to_k, layer.to_v]
        ours.qkv.weight.copy_(torch.cat([part.weight[:, :, 0, 0] for part in parts]))
        ours.table.copy_(layer.rel_pos_emb[..., 0])
    ours.proj.load_state_dict(theirs.proj.state_dict())
    x = _tokens().double()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["aft_full", "aft_local"])
def test_keys_past_88_overflow_in_theirs_alone(name: str) -> None:
    ours, theirs = _aft(name)
    with torch.no_grad():
        theirs.to_k.bias.fill_(100.0)
        ours.qkv.bias[16:32] = 100.0
    assert theirs(_tokens()).isnan().all()
    assert ours(_tokens()).isfinite().all()


def test_the_biases_of_their_aft_local_never_train() -> None:
    _, theirs = _pair("aft_local")
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0)
    given = theirs.wbias
    before = given.detach().clone()
    theirs(_tokens()).square().sum().backward()
    optimizer.step()
    assert theirs.wbias is not given
    assert given.grad is None
    assert given.equal(before)
