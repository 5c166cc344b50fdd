"""The checks that there are, and running them."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from reattend.attention import Mixer, MixerFactory, MixerSpec
from reattend.conformance.places import location, method_place, raised_place
from reattend.conformance.results import CheckFailed, NotApplicable, Passed, Report, Result
from reattend.conformance.subject import Subject

CHECKS = "reattend.conformance.checks"
FIRST = ("shapes.outputs", "isolation.inputs", "determinism.evaluation", "shapes.strides")  # What all others count on.
MOST_IMPORTANT = (
    "shapes",
    "isolation",
    "determinism",
    "agreement",
    "causality",
    "padding",
    "batch",
    "decoding",
    "gradients",
)


@dataclass(frozen=True)
class Check:
    """One property that every mixer must have.

    Attributes:
        name: "module.function".
        title: what holds when it passes, in words.
        function: returns `Passed`, or raises `CheckFailed` or `NotApplicable`. All else is the mixer's fault.
        costly: takes many seconds, so that it is run when asked for.
        once: needs to be run at one place only.
        after: names of checks whose failure would be seen here again; it is then left out.
    """

    name: str
    title: str
    function: Callable[[Subject], Passed]
    costly: bool = False
    once: bool = False
    after: tuple[str, ...] = ()

    def __call__(self, subject: Subject) -> Result:
        """What the check finds at one place; the same subject is asked once."""
        if self.name not in subject.results:
            subject.results[self.name] = self._result(subject)
        return subject.results[self.name]

    def _result(self, subject: Subject) -> Result:
        names = (*FIRST[: FIRST.index(self.name) if self.name in FIRST else None], *self.after)
        for earlier in (other for other in all_checks() if other.name in names):
            if earlier(subject).status == "failed":
                return Result(self.name, self.title, "not applicable", note=f"first mend {earlier.name}")
        try:
            passed = self.function(subject)
        except NotApplicable as reason:
            return Result(self.name, self.title, "not applicable", note=str(reason))
        except CheckFailed as failure:
            place = failure.place or method_place(subject.factory.mixer_class, _built(subject), failure.method)
            return Result(
                self.name,
                self.title,
                "failed",
                measured=failure.measured,
                expected=failure.expected,
                seen=failure.seen,
                look_at=f"{place}: {failure.advice}",
                place=str(subject),
            )
        except Exception as error:
            return _raised(self.name, self.title, subject, error)
        return Result(self.name, self.title, "passed", note=passed.note, measured=passed.measured)


def check(
    title: str, *, costly: bool = False, once: bool = False, after: tuple[str, ...] = ()
) -> Callable[[Callable[[Subject], Passed]], Check]:
    """Makes a check of a function of a module of `reattend.conformance.checks`; arguments as those of `Check`."""

    def made(function: Callable[[Subject], Passed]) -> Check:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        return Check(name, title, function, costly, once, after)

    return made


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check that a module of `reattend.conformance.checks` defines, the most important modules first."""
    found: list[Check] = []
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(CHECKS).__path__)]
    first = [name for name in MOST_IMPORTANT if name in names]
    for name in [*first, *(name for name in names if name not in first)]:
        defined = vars(importlib.import_module(f"{CHECKS}.{name}")).values()
        found += [value for value in defined if isinstance(value, Check)]
    return tuple(found)


def run(
    factory: MixerFactory,
    specs: Sequence[MixerSpec],
    *,
    batch_size: int = 3,
    costly: bool = False,
    asked: str = "",
    checks: Sequence[Check] | None = None,
) -> Report:
    """Checks what `factory` builds at each of `specs`.

    Args:
        factory: finds no problems at the `specs`.
        specs: the places; each check's result is the worst over them.
        batch_size: samples at once.
        costly: run the costly checks too.
        asked: the command line, for the report.
        checks: those to run; by default all.
    """
    start = time.perf_counter()
    subjects = [Subject(factory, spec, batch_size) for spec in specs]
    kind = factory.mixer_class
    places = [str(subject) for subject in subjects]
    try:
        mixer = subjects[0].mixer()
        stated = _stated_flops(subjects[0])
    except Exception as error:
        failed = _raised("build", "It can be built", subjects[0], error)
        return Report(kind.__name__, location(kind), asked, places, 0, None, [failed], time.perf_counter() - start)
    results = [
        _over_places(c, subjects[:1] if c.once else subjects)
        for c in (all_checks() if checks is None else checks)
        if costly or not c.costly
    ]
    parameters = sum(p.numel() for p in mixer.parameters())
    seconds = time.perf_counter() - start
    return Report(kind.__name__, location(kind), asked, places, parameters, stated, results, seconds)


def _over_places(check: Check, subjects: Sequence[Subject]) -> Result:
    """The failure, or the pass with the largest figure, or else the reason of the first place."""
    results = [check(subject) for subject in subjects]
    failed = [result for result in results if result.status == "failed"]
    passed = [result for result in results if result.status == "passed"]
    if failed:
        others = f" (and at {len(failed) - 1} more)" if len(failed) > 1 else ""
        return replace(failed[0], place=failed[0].place + others)
    return max(passed, key=lambda result: result.measured or 0.0) if passed else results[-1]


def _raised(name: str, title: str, subject: Subject, error: Exception) -> Result:
    """The failure of a mixer that raises where it should not."""
    words = (str(error).strip().splitlines() or [""])[0]
    return Result(
        name,
        title,
        "failed",
        expected="no exception",
        seen=f"{type(error).__name__}: {words}".removesuffix(": "),
        look_at=raised_place(error) or location(subject.factory.mixer_class),
        place=str(subject),
    )


def _built(subject: Subject) -> Mixer | None:
    try:
        return subject.mixer()
    except Exception:
        return None


def _stated_flops(subject: Subject) -> int | None:
    try:
        return subject.mixer().flops(subject.spec.max_length)
    except NotImplementedError:
        return None
