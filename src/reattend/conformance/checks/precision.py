"""Double precision."""

from __future__ import annotations

import torch

from reattend.conformance.check import check
from reattend.conformance.compare import relative_error
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject


@check("float64 in, float64 throughout")
def float64(subject: Subject) -> Passed:
    x = subject.tokens(torch.float64)
    y, _ = subject.outputs(subject.mixer(torch.float64), x)
    if y.dtype != torch.float64:
        raise CheckFailed("float64 for tokens and parameters of float64", str(y.dtype), "the type of what it returns")
    if subject.noise >= 1e-9:
        raise CheckFailed(
            "rounding errors of float64, about 1e-16",
            f"{subject.noise:.1e}, as of float32",
            "x.float(), or tensors made without dtype=x.dtype; torch.promote_types(x.dtype, torch.float32) widens "
            "bfloat16 and leaves float64",
            measured=subject.noise,
        )
    single, _ = subject.outputs(subject.mixer(torch.float32), x.float())
    return Passed(f"float32 differs by {relative_error(single, y):.1e}")
