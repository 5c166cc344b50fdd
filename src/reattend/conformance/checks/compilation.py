"""`torch.compile`."""

from __future__ import annotations

import logging
import re

import torch

from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, worst
from reattend.conformance.places import raised_place, short_path
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject, forward_backward

TOLERANCE = 1e-4


@check(
    "torch.compile takes it whole, without graph breaks, and gives the same",
    after=("gradients.finite",),
)
def whole(subject: Subject) -> Passed:
    mixer, x = subject.mixer(torch.float32), subject.tokens(torch.float32)
    mask = subject.usual_mask(x)
    wanted, _, exact = forward_backward(subject, mixer, x, mask)
    torch._dynamo.reset()
    level = logging.getLogger("torch._dynamo").level
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    try:
        y, _, found = forward_backward(subject, compiled, x, mask)  # type: ignore[arg-type]
    except Exception as error:
        raise CheckFailed(
            "one graph (backend aot_eager, fullgraph=True)",
            _reason(error),
            "no .item(), no branches on values of tensors, no printing, no calls outside torch",
            place=_line(error) or raised_place(error),
        ) from error
    finally:
        logging.getLogger("torch._dynamo").setLevel(level)
        torch._dynamo.reset()
    if not relative_error(y, wanted) <= TOLERANCE:
        raise CheckFailed(
            "the output of the mixer that is not compiled",
            worst(y, wanted),
            "views that are written to, and values that were fixed when the graph was made",
            measured=relative_error(y, wanted),
        )
    floor = max((g.abs().max().item() for g in exact.values() if g is not None and g.numel()), default=0.0)
    for name, gradient in exact.items():
        got = found.get(name, found.get(f"_orig_mod.{name}"))
        if gradient is None:
            continue
        off = relative_error(torch.zeros_like(gradient) if got is None else got, gradient, floor)
        if not off <= TOLERANCE:
            raise CheckFailed(
                "the gradients of the mixer that is not compiled",
                f"that of {name} is off by {off:.2g} of the largest",
                "a backward of your own, and in-place changes",
                measured=off,
            )
    return Passed()


def _reason(error: Exception) -> str:
    """What torch says in its first lines, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    explained = [line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")]
    return f"{type(error).__name__}: {'. '.join([*lines[:1], *explained[:1]])}"


def _line(error: Exception) -> str:
    """The user's line that torch names."""
    frames = re.findall(
        r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', str(error).rpartition("from user code")[2]
    )
    if not frames:
        return ""
    file, line, code = frames[-1]
    return f"{short_path(file)}:{line}, {code!r}"
