"""All figures of one attention: agreement with its twin, capabilities, growth, time beside softmax and a package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reattend.attention import LayeredMixerFactory, MixerFactory, MixerSpec
from reattend.conformance.check import all_checks, run
from reattend.conformance.results import Result
from reattend.efficiency.arguments import Shape
from reattend.efficiency.beside import OURS, THEIRS, beside
from reattend.efficiency.cost import Cost
from reattend.efficiency.ours import FUSED, candidate
from reattend.efficiency.peers import PEERS, Peer
from reattend.efficiency.scaling import Scaling, growth_cells, scaling
from reattend.efficiency.timing import ratio
from reattend.errors import ReattendError

CHECKED_AT = Shape(length=24, dim=16, heads=2, batch_size=3)
BLIND = "causality.future"
CHECKS = ("agreement.float64", "agreement.float32", BLIND, "decoding.parallel", "padding.content")


@dataclass(frozen=True)
class Form:
    """Time and memory of the causal or the other form.

    Attributes:
        costs: those of fused softmax, of ours and, where there is a package, of theirs.
        peer: their layer, in words.
        package: its package.
    """

    costs: dict[str, Cost]
    peer: str | None
    package: str | None

    def cells(self) -> tuple[str, str]:
        """Ratios to fused softmax and to the package."""
        ours = self.costs[OURS].rounds
        to_softmax = str(ratio(ours, self.costs[FUSED].rounds))
        if self.peer is None:
            return to_softmax, ""
        return to_softmax, f"{ratio(ours, self.costs[THEIRS].rounds)} {self.package}"


@dataclass(frozen=True)
class Mechanism:
    """What was found about one attention.

    Attributes:
        checks: results of the conformance checks of `CHECKS` by name.
        has_causal: whether it claims a causal form.
        form: the form that is not causal, None if it was not measured.
        causal: the causal form, None if there is none or it was not measured.
        growth: how time and memory grow; None if they could not be measured.
        claim: exponent of time that it claims.
        problem: why something was not measured, "" if nothing went wrong.
    """

    checks: dict[str, Result]
    has_causal: bool
    form: Form | None
    causal: Form | None
    growth: Scaling | None
    claim: float
    problem: str

    @property
    def failed(self) -> bool:
        """Whether a check failed or something could not be measured."""
        return bool(self.problem) or any(result.status == "failed" for result in self.checks.values())

    def cells(self) -> list[str]:
        """Cells for `COLUMNS`."""
        forms = [("", "") if form is None else form.cells() for form in (self.form, self.causal)]
        return [
            *(self._cell(name) for name in CHECKS),
            *growth_cells(self.growth, self.claim),
            *(form[0] for form in forms),
            *(form[1] for form in forms),
        ]

    def _cell(self, check: str) -> str:
        result = self.checks[check]
        if result.status == "failed":
            return f"FAILS: {result.seen}"
        if result.status == "passed":
            return "yes" if check == BLIND else result.note.removeprefix("agrees ") or "yes"
        return "sees more" if check == BLIND and self.has_causal else "no"


COLUMNS = (
    *("twin in float64", "twin in float32", "blind to the future", "step as parallel", "padding"),
    *("time", "claimed", "memory"),
    *("of softmax", "of causal softmax", "of package", "causal, of package"),
)


def measure(
    name: str, overrides: Sequence[str], shape: Shape, lengths: tuple[int, int], quadratic_lengths: tuple[int, int]
) -> Mechanism:
    """Checks and measures `attention=name`.

    Checks run on its YAML's options, since a window or number of landmarks for long sequences would exceed the few
    tokens of the checks; time and memory with the package's options where there is a package.

    Args:
        name: the attention.
        overrides: for checks and measurements.
        shape: what time is measured at; `causal=None` for both forms.
        lengths: between which growth is measured.
        quadratic_lengths: the same for attentions that claim N^2, whose weights at large lengths would fill the memory.
    """
    small = candidate(name, overrides, CHECKED_AT)
    has_causal = small.factory.capabilities.causal
    specs = [small.spec] + ([replace(small.spec, causal=True)] if has_causal else [])
    checks = checked(small.factory, specs)
    forms: dict[bool, Form | None] = {False: None, True: None}
    growth, problem = None, ""
    try:
        for causal in forms:
            if shape.causal in (None, causal) and (has_causal or not causal):
                forms[causal] = _form(name, overrides, replace(shape, causal=causal))
        growth = _growth(name, overrides, shape, lengths if small.claim < 2.0 else quadratic_lengths)
    except Exception as error:  # a fault of one attention must not cost the others' rows
        problem = f"{type(error).__name__}: {error}"
    return Mechanism(checks, has_causal, forms[False], forms[True], growth, small.claim, problem)


def checked(factory: MixerFactory | LayeredMixerFactory, specs: Sequence[MixerSpec]) -> dict[str, Result]:
    """Results of `CHECKS` at `specs`.

    Raises:
        ReattendError: the attention is made of several.
    """
    if not isinstance(factory, MixerFactory):
        raise ReattendError("attention=layers is made of other attentions: measure those")
    wanted = [check for check in all_checks() if check.name in CHECKS]
    report = run(factory, specs, batch_size=CHECKED_AT.batch_size, checks=wanted)
    return {result.check: result for result in report.results}


def _form(name: str, overrides: Sequence[str], shape: Shape) -> Form:
    peer = _peer(name, shape)
    measured = beside(name, overrides, peer, shape)
    return Form(measured, peer.label if peer else None, peer.package if peer else None)


def _peer(name: str, shape: Shape) -> Peer | None:
    """The first package that has the same in this form and at this length, and can be imported."""
    fitting = (p for p in PEERS if p.attention == name and p.fits(bool(shape.causal), shape.length))
    return next((p for p in fitting if not p.missing()), None)


def _growth(name: str, overrides: Sequence[str], shape: Shape, lengths: tuple[int, int]) -> Scaling:
    peer = _peer(name, shape)
    options = peer.overrides if peer else ()
    layer = candidate(name, [*options, *overrides], replace(shape, causal=bool(shape.causal)))
    return scaling(
        layer.factory,
        layer.spec,
        lengths,
        shape.batch_size,
        rounds=shape.rounds,
        device=shape.torch_device(),
        expected=layer.claim,
    )
