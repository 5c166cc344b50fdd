"""`scripts/measure.py peers`: our attentions beside those of public packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from reattend.efficiency.arguments import Shape, read_own
from reattend.efficiency.beside import OURS, THEIRS, beside
from reattend.efficiency.ours import FUSED
from reattend.efficiency.page import Page, figure
from reattend.efficiency.peers import PEERS, Peer
from reattend.efficiency.setting import prepare
from reattend.efficiency.timing import ratio
from reattend.errors import ReattendError, nearest

USAGE = """\
python scripts/measure.py peers [which=all|performer-pytorch,...] [causal=true|false] [file=results/peers.md]
    [length=4096] [dim=64] [heads=2] [batch_size=4] [rounds=10] [device=auto|cpu|cuda] [trainer.threads=2]
    our attentions beside layers of public packages with the same options; both forms unless `causal` is given"""
COLUMNS = (
    "attention beside package",
    "ours ms",
    "theirs ms",
    "ours / theirs (quartiles)",
    "ours MB",
    "theirs MB",
    "ours / theirs",
    f"ours / {FUSED}",
    f"theirs / {FUSED}",
)


@dataclass(frozen=True)
class Peers(Shape):
    """What is compared: the packages in `which`, in both forms where `causal` is left out."""

    which: list[str] = field(default_factory=lambda: ["all"])
    file: str | None = None

    def problems(self) -> list[str]:
        packages = sorted({peer.package for peer in PEERS})
        unknown = [name for name in self.which if name not in ("all", *packages)]
        told = [
            f"which={name}: no such package.{nearest(name, packages)} There are: {', '.join(packages)}"
            for name in unknown
        ]
        return super().problems() + told


def measure_peers(arguments: Sequence[str]) -> Page:
    """Time and memory of ours, theirs and fused softmax, in alternating rounds of one process."""
    own, overrides = read_own(Peers, arguments, USAGE)
    device = own.torch_device()
    conditions = prepare(device, overrides)
    shape = replace(own, causal=None)
    page = Page(f"forward + backward of a layer beside packages: {shape}; {conditions}", COLUMNS, own.file)
    asked = [peer for peer in PEERS if peer.package in own.which or "all" in own.which]
    compared = 0
    for peer in asked:
        if missing := peer.missing():
            page.note(missing)
            continue
        for causal in peer.causal:
            if own.causal in (None, causal):
                compared += _add(page, peer, replace(own, causal=causal), overrides)
    if not compared:
        reasons = page.notes or [f"{peer.package} has no such form" for peer in asked]
        raise ReattendError("\n".join(["there is nothing to compare:", *dict.fromkeys(reasons)]))
    return page


def _add(page: Page, peer: Peer, shape: Shape, overrides: Sequence[str]) -> bool:
    """Measures a row, or notes why it cannot; whether it was measured."""
    name = f"{peer.attention}{', causal' if shape.causal else ''}: {peer.label}"
    if peer.most_tokens is not None and peer.most_tokens < shape.length:
        shape = replace(shape, length=peer.most_tokens, grid=None)
        name += f", {shape.length:,} tokens"
    try:
        measured = beside(peer.attention, overrides, peer, shape)
    except ReattendError as error:
        page.note(f"{name}: {error}")
        return False
    ours, theirs, softmax = measured[OURS], measured[THEIRS], measured[FUSED]
    cells = [
        figure(1e3 * ours.seconds),
        figure(1e3 * theirs.seconds),
        str(ratio(ours.rounds, theirs.rounds)),
        figure(ours.bytes / 1e6),
        figure(theirs.bytes / 1e6),
        f"{ours.bytes / theirs.bytes:.2f}",
        f"{ratio(ours.rounds, softmax.rounds).median:.2f}",
        f"{ratio(theirs.rounds, softmax.rounds).median:.2f}",
    ]
    note = f"{peer.package}: {peer.caveat}." if peer.caveat else ""
    page.add(name, cells, {key: asdict(cost) for key, cost in measured.items()}, note)
    return True
