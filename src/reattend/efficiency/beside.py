"""An attention of ours beside fused softmax and the layer of a package."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from reattend.efficiency.arguments import Shape
from reattend.efficiency.cost import Cost, costs
from reattend.efficiency.ours import FUSED, candidate, fused_softmax
from reattend.efficiency.peers import Peer

OURS, THEIRS = "ours", "theirs"


def beside(name: str, overrides: Sequence[str], peer: Peer | None, shape: Shape) -> dict[str, Cost]:
    """Costs of fused softmax, of `attention=name` and of `peer`, whose options ours is given, measured side by side.

    Raises:
        ConfigError: ours cannot be built at `shape`.
        ReattendError: theirs cannot.
    """
    options, on_grid = (peer.overrides, peer.on_grid) if peer else ((), False)
    layer = candidate(name, [*options, *overrides], shape, on_grid=on_grid)
    layers: dict[str, nn.Module] = {FUSED: fused_softmax(shape).build(), OURS: layer.build()}
    if peer is not None:
        layers[THEIRS] = peer.layer(layer.spec)
    return costs(layers, shape.batch_size, shape.length, shape.dim, shape.rounds, shape.torch_device())
