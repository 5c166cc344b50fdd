"""Extreme but finite inputs give finite outputs and gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reattend.conformance.check import check
from reattend.conformance.compare import not_finite
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject, forward_backward

LARGEST_FEATURE = 120.0
ADVICE = (
    "subtract the largest exponent before exp, divide where the divisor is not zero only (torch.where on the input and "
    "on the result), and add no epsilon"
)


@check("Features of 120 give finite outputs and gradients, in float32 and bfloat16", after=("gradients.finite",))
def large(subject: Subject) -> Passed:
    x = subject.tokens(torch.float32)
    x = x * scale_to_features(subject, x)
    signs = {"features of 120": x, "features of 120 of one sign": x.abs(), "the same below zero": -x.abs()}
    for words, tokens in signs.items():
        _check(subject, words, tokens, None if tokens is x else subject.usual_mask(tokens))
    return Passed()


@check("Identical tokens, and tokens that are zero, give finite outputs and gradients", after=("gradients.finite",))
def identical(subject: Subject) -> Passed:
    x = subject.tokens(torch.float32)
    same = x[:, :1].expand_as(x).contiguous()
    large_same = same * scale_to_features(subject, same)
    for words, tokens in {
        "identical tokens": same,
        "identical tokens with features of 120": large_same,
        "tokens that are all zero": torch.zeros_like(x),
    }.items():
        _check(subject, words, tokens, None)
    return Passed()


@check("One real token, or none, gives finite outputs and gradients", after=("gradients.finite",))
def few(subject: Subject) -> Passed:
    subject.requires("padding_mask")
    x = subject.tokens(torch.float32, batch_size=3)
    places = torch.arange(x.shape[1])
    real = torch.stack([places == 0, places == x.shape[1] - 1, places < 0])
    for scale, size in ((1.0, ""), (scale_to_features(subject, x), " with features of 120")):
        _check(subject, f"samples of one real token, in front and at the end, and of none{size}", scale * x, real)
    return Passed()


def scale_to_features(subject: Subject, x: Tensor) -> float:
    """Factor of `x` that takes the largest output of the mixer's first linear layers to 120, or `x` itself if none."""
    seen: list[float] = []
    mixer = subject.mixer(torch.float32, noise=0.0)
    for module in mixer.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(
                lambda _, inputs, output: seen.append(output.abs().max().item()) if inputs[0] is x else None
            )
    with torch.no_grad():
        subject.outputs(mixer, x)
    largest = max(seen, default=x.abs().max().item())
    return LARGEST_FEATURE / largest if largest and math.isfinite(largest) else LARGEST_FEATURE


def _check(subject: Subject, words: str, x: Tensor, mask: Tensor | None) -> None:
    mixer = subject.mixer(torch.float32, noise=0.0)
    for bfloat16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            y, losses, found = forward_backward(subject, mixer, x, mask)
        named = [("the output", y), *((f"the loss '{name}'", loss) for name, loss in losses.items())]
        wrong = not_finite([*named, *((f"the gradient of {name}", gradient) for name, gradient in found.items())])
        if wrong:
            kind = "bfloat16 autocast" if bfloat16 else "float32"
            raise CheckFailed(f"finite values for {words}", f"{wrong}, in {kind}", ADVICE)
