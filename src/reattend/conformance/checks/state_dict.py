"""The state dict holds all that the output depends on."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from reattend.attention import Mixer
from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, same_bits
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject


@check("A new mixer that loads the state dict gives the same output, to the bit")
def round_trip(subject: Subject) -> Passed:
    saved, loaded = subject.mixer(torch.float32), subject.mixer(torch.float32, seed=1)
    x = subject.tokens(torch.float32)
    mask = subject.usual_mask(x)
    wanted, _ = subject.outputs(saved, x, mask)
    state = {name: value.clone() for name, value in saved.state_dict().items()}
    try:
        loaded.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise CheckFailed(
            "the same keys and shapes for the same options",
            " ".join(str(error).split()),
            "parameters and buffers are made in __init__, the same for every seed",
            method="__init__",
        ) from error
    got, _ = subject.outputs(loaded, x, mask)
    if not same_bits(got, wanted):
        moved = relative_error(got, wanted)
        names = _other_tensors(saved, loaded)
        raise CheckFailed(
            "the same output from a checkpoint",
            f"a relative difference of {moved:.2g}" + (f"; not in the state dict: {', '.join(names)}" if names else ""),
            "register_buffer(name, tensor) for every tensor that is drawn or learned and is no parameter, persistent",
            method="__init__",
            measured=moved,
        )
    return Passed(f"{len(state)} tensors")


@check("A deep copy gives the same output and shares nothing")
def deep_copy(subject: Subject) -> Passed:
    mixer, x = subject.mixer(torch.float32), subject.tokens(torch.float32)
    mask = subject.usual_mask(x)
    wanted, _ = subject.outputs(mixer, x, mask)
    try:
        copied = copy.deepcopy(mixer)
    except Exception as error:
        raise CheckFailed(
            "copy.deepcopy to work (averaged weights and FSDP need it)",
            f"{type(error).__name__}: {' '.join(str(error).split())}",
            "attributes that cannot be copied: results of computations on parameters, generators, locks, open files",
            method="__init__",
        ) from error
    got, _ = subject.outputs(copied, x, mask)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(1.0)
    later, _ = subject.outputs(copied, x, mask)
    for output, words in ((got, "it differs"), (later, "it moves when the original's parameters do")):
        if not same_bits(output, wanted):
            raise CheckFailed(
                "a copy with the output of the original, whatever becomes of that",
                f"{words}, by {relative_error(output, wanted):.2g}",
                "tensors and modules that are held outside the module: in lists, closures, class attributes",
                method="__init__",
            )
    return Passed()


def _other_tensors(saved: Mixer, loaded: Mixer) -> list[str]:
    """Names of tensors that the two hold, different, outside their state dicts."""
    found = []
    for (prefix, one), other in zip(saved.named_modules(), loaded.modules(), strict=True):
        held = [vars(module) | dict(module.named_buffers(recurse=False)) for module in (one, other)]
        known = one.state_dict()
        for name, value in held[0].items():
            also = held[1].get(name)
            differs = isinstance(value, Tensor) and isinstance(also, Tensor) and not same_bits(value, also)
            if differs and name not in known:
                found.append(f"{prefix}.{name}".lstrip("."))
    return found
