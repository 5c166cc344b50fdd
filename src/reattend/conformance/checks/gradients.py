"""Gradients are there, finite, and those of the output."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention import Mixer
from reattend.conformance.check import all_checks, check
from reattend.conformance.compare import listed, not_finite
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import Subject, gradients, total

STEPS = (1e-5, 1e-4, 1e-3, 1e-6)
COARSE_STEPS = (1e-2, 3e-3)  # in float32
DIRECTIONS = 3
TOLERANCE = 1e-3
TWIN = "agreement.float64"


@check("Every parameter gets a gradient")
def every_parameter(subject: Subject) -> Passed:
    mixer = subject.mixer()
    parameters = [name for name, parameter in mixer.named_parameters() if parameter.requires_grad]
    if not parameters:
        raise NotApplicable("it has no parameters")
    unreached, zero = set(parameters), set(parameters)
    for seed in range(3):
        found = gradients(subject, mixer, subject.tokens(seed=seed))
        unreached -= {name for name, gradient in found.items() if gradient is not None}
        zero -= {name for name, gradient in found.items() if gradient is not None and gradient.any()}
    if unreached or zero:
        words = [f"none for {listed(sorted(unreached))}"] if unreached else []
        words += [f"all zero for {listed(sorted(zero - unreached))}"] if zero - unreached else []
        raise CheckFailed(
            f"a gradient for each of {len(parameters)} parameters",
            "; ".join(words),
            "is it used in forward, and by something that can be differentiated? no .detach(), .data, argmax or "
            "rounding behind it; a parameter that is not needed with these options should not be made",
        )
    return Passed(f"{len(parameters)} parameters")


@check("Gradients are finite")
def finite(subject: Subject) -> Passed:
    mixer, x = subject.mixer(torch.float32), subject.tokens(torch.float32)
    for mask in (None, subject.usual_mask(x)):
        wrong = not_finite((f"the gradient of {n}", g) for n, g in gradients(subject, mixer, x, mask).items())
        if wrong:
            padded = " with padding" if mask is not None else ""
            raise CheckFailed(
                f"finite gradients for normally distributed tokens{padded}",
                wrong,
                "sqrt, log, norm or division at zero, and torch.where around them: the branch that is not taken still "
                "gets 0 * inf = NaN, so make its input safe first",
            )
    return Passed()


@check("Gradients are those of finite differences", after=("gradients.finite",))
def finite_differences(subject: Subject) -> Passed:
    if "gradient" in subject.capabilities.reasons:
        raise NotApplicable(subject.capabilities.reasons["gradient"])
    mixer, x = subject.mixer(), subject.tokens()
    mask = subject.usual_mask(x)
    found = gradients(subject, mixer, x, mask)
    reached = {name: gradient for name, gradient in found.items() if gradient is not None}
    if not reached:
        raise NotApplicable("its output has no gradient at all")
    sizes = {name: gradient.norm().item() / gradient.numel() ** 0.5 for name, gradient in reached.items()}
    errors = {
        name: _error(subject, mixer, x, mask, name, gradient, max(sizes[name], 1e-3 * max(sizes.values())))
        for name, gradient in reached.items()
    }
    name = max(errors, key=lambda n: errors[n])
    if not errors[name] <= TOLERANCE:
        if any(c.name == TWIN and c(subject).status == "passed" for c in all_checks()):
            raise NotApplicable("its gradients are those of its naive twin, which are no slopes of the output")
        wrong = [n for n, error in errors.items() if not error <= TOLERANCE]
        raise CheckFailed(
            "along random directions the slope that autograd says",
            f"for {listed(wrong)} it is off by {100 * errors[name]:.2g} %",
            ".detach(), .data, no_grad, in-place changes, or a backward of your own that does not fit its forward; if "
            'the gradient is meant to be another, say so in capabilities: reasons={"gradient": "..."}',
            measured=errors[name],
        )
    return Passed(f"to {errors[name]:.1e}", errors[name])


def _error(
    subject: Subject, mixer: Mixer, x: Tensor, mask: Tensor | None, name: str, gradient: Tensor, size: float
) -> float:
    """Relative error of the slope along a random direction; the median over `DIRECTIONS` where the first one is off.

    A kink within a step spoils that step and direction only; a wrong gradient spoils all.
    """
    leaf = x if name == "x" else dict(mixer.named_parameters())[name].data
    found: list[float] = []
    for seed in range(DIRECTIONS):
        generator = torch.Generator().manual_seed(100 + seed)
        direction = torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)
        wanted = (gradient * direction).sum().item()
        found.append(float("inf"))
        for step in STEPS if subject.dtype == torch.float64 else COARSE_STEPS:
            slope = _slope(subject, mixer, x, mask, leaf, step * direction) / step
            found[-1] = min(found[-1], abs(slope - wanted) / max(abs(slope), abs(wanted), size))
            if found[-1] <= TOLERANCE / 10:
                break
        if found[0] <= TOLERANCE:
            return found[0]
    return sorted(found)[DIRECTIONS // 2]


def _slope(subject: Subject, mixer: Mixer, x: Tensor, mask: Tensor | None, leaf: Tensor, step: Tensor) -> float:
    """Half the difference of `total` after a step of `leaf` forwards and one backwards."""
    kept, values = leaf.clone(), []
    for sign in (1, -1):
        leaf += sign * step
        with torch.no_grad():
            values.append(total(*subject.outputs(mixer, x, mask)).item())
        leaf.copy_(kept)
    return (values[0] - values[1]) / 2
