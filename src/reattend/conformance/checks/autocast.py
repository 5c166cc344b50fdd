"""Mixed precision."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.contract import Losses
from reattend.conformance.check import check
from reattend.conformance.compare import not_finite
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject, forward_backward

FORWARD = 0.05
BACKWARD = 0.4


@check("Under bfloat16 autocast outputs and gradients are near those of float32", after=("gradients.finite",))
def bfloat16(subject: Subject) -> Passed:
    mixer, x = subject.mixer(torch.float32), subject.tokens(torch.bfloat16).float()
    mask = subject.usual_mask(x)
    wanted, _, exact = forward_backward(subject, mixer, x, mask)
    with torch.autocast("cpu", torch.bfloat16):
        y, losses, rounded = forward_backward(subject, mixer, x, mask)
    _check_finite(y, losses, rounded)
    error = _error(y, wanted, mask)
    if not error <= FORWARD:
        raise CheckFailed(
            f"three quarters of the tokens within {FORWARD} of float32's output",
            f"{error:.2g}",
            "sums over tokens, exponentials and normalisers in float32: autocast leaves what is no matrix product in "
            "the type of its input",
            measured=error,
        )
    pairs = [(rounded[name], gradient) for name, gradient in exact.items() if gradient is not None]
    flat = [
        torch.cat([_or_zero(g, like).flatten() for g, like in side]) for side in (pairs, [(e, e) for _, e in pairs])
    ]
    off = ((flat[0] - flat[1]).norm() / flat[1].norm().clamp(min=1e-30)).item()
    if not off <= BACKWARD:
        raise CheckFailed(
            f"gradients within {BACKWARD} of float32's, in norm",
            f"{off:.2g}",
            "a backward of your own that computes in bfloat16, or a .to() that cuts the graph",
            measured=off,
        )
    return Passed(f"to {error:.1e}, gradients to {off:.1e}", error)


def _check_finite(y: Tensor, losses: Losses, rounded: dict[str, Tensor | None]) -> None:
    if not y.is_floating_point():
        raise CheckFailed("floating-point outputs", str(y.dtype), "the type of what it returns")
    named = [("the output", y), *((f"the loss '{name}'", loss) for name, loss in losses.items())]
    wrong = not_finite([*named, *((f"the gradient of {name}", gradient) for name, gradient in rounded.items())])
    if wrong:
        raise CheckFailed("finite values", wrong, "exp, log or division in bfloat16: convert to float32 before")


def _error(y: Tensor, wanted: Tensor, mask: Tensor | None) -> float:
    """Upper quartile over real tokens of the error relative to the root mean square of tokens."""
    real = torch.ones(y.shape[:2], dtype=torch.bool) if mask is None else mask
    difference, size = (y.double() - wanted.double())[real].norm(dim=1), wanted.double()[real].norm(dim=1)
    return float(difference.quantile(0.75) / size.square().mean().sqrt().clamp(min=1e-30))


def _or_zero(gradient: Tensor | None, like: Tensor | None) -> Tensor:
    assert like is not None
    return torch.zeros_like(like) if gradient is None else gradient
