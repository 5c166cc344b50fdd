"""Each kind of fault is caught by the check that is meant for it, and told so that it can be mended."""

from __future__ import annotations

import inspect
import re
from typing import Any

import examples
import pytest
import torch
from examples import Sound

from reattend.attention import Mixer, MixerFactory, MixerSpec, MultiHeadAttention, naive
from reattend.conformance import Report, Result, all_checks, as_text, run
from reattend.efficiency.scaling import Scaling

SPEC = MixerSpec(dim=8, num_heads=2, max_length=13)
CAUSAL = MixerSpec(dim=8, num_heads=2, max_length=13, causal=True)
COMPILATION = "compilation.whole"

# The class, the checks that fail and no other, and words of what is told.
WRONG: dict[str, tuple[set[str], str]] = {
    "SeesTheFuture": ({"causality.future"}, "tokens from there on change.*moves by.*mask keys j > i"),
    "SeesTheFutureInTraining": (
        {"causality.training", "padding.training"},
        "from there on change, in training mode.*mask keys j > i",
    ),
    "SeesTheFutureOfLongSequences": ({"causality.future"}, "before token 1 of 523 that do not move"),
    "NeverCausal": ({"causality.future"}, "spec.causal is never read"),
    "CountsTheFuture": ({"causality.beginning"}, "the first .* of 131 tokens.*x.shape\\[1\\]"),
    "TakesCausal": ({"causality.refusal"}, "TakesCausal.problems.*super\\(\\).problems"),
    "SeesPadding": ({"padding.content"}, "content of padding changes.*mask padded tokens out"),
    "SeesPaddingInTraining": ({"padding.training"}, "padding on the right, in training mode.*mask padded tokens out"),
    "CountsPadding": ({"padding.amount", "causality.beginning"}, "divide by the number of real tokens"),
    "LossOverPadding": ({"padding.content"}, "sum the loss 'size' over real tokens only"),
    "GradientIntoPadding": (
        {"padding.gradient", "gradients.finite_differences"},
        "zero gradient in padded tokens.*of the largest gradient",
    ),
    "WrongStep": ({"decoding.parallel"}, "first differs at token 0.*WrongStep.step.*the own token included"),
    "GrowingState": ({"decoding.state_size"}, "0 numbers per sample at first, 8 after one token, 1048 after 131"),
    "StateInPlace": ({"decoding.pure"}, "sum, count changed in place"),
    "StateWithoutBatch": (
        {"decoding.pure", "decoding.parallel", "decoding.state_size"},
        "the batch of 3 in front.*count \\(1, 1\\).*StateWithoutBatch.initial_state",
    ),
    "UnusedParameter": ({"gradients.every_parameter"}, "none for scale.*is it used in forward"),
    "ZeroGradient": ({"gradients.every_parameter"}, "all zero for scale"),
    "WrongGradient": ({"gradients.finite_differences"}, "off by .* %"),
    "DetachedWeight": ({"gradients.finite_differences"}, "for value.bias it is off"),
    "InfiniteGradient": ({"gradients.finite"}, "NaN in the gradient of x.*sqrt"),
    "RandomInEvaluation": ({"determinism.evaluation"}, "random numbers in evaluation mode"),
    "NumpyInTraining": ({"determinism.training"}, "torch's own stream"),
    "CountsCalls": ({"isolation.state"}, "self.calls changed"),
    "RemembersInItsFile": ({"isolation.state"}, "examples.SEEN changed"),
    "MovingAverage": ({"determinism.evaluation"}, "between two calls"),
    "ChangesItsInput": ({"isolation.inputs"}, "x changed"),
    "BatchMean": ({"batch.evaluation"}, "sample 0 of 3 to give the same alone.*dimension 0"),
    "BatchNorm": ({"batch.training"}, "batch normalisation in norm"),
    "BreaksTheGraph": ({"compilation.whole"}, "examples.py:\\d+.*x.abs\\(\\).max\\(\\).item\\(\\).*no .item\\(\\)"),
    "ForgottenBuffer": ({"state_dict.round_trip"}, "not in the state dict: features.*register_buffer"),
    "OtherShapes": ({"state_dict.round_trip"}, "size mismatch for rows"),
    "CannotBeCopied": ({"state_dict.deep_copy"}, "deepcopy to work.*results of computations on parameters"),
    "Overflows": (
        {"extremes.large", "extremes.identical", "extremes.few"},
        "features of 120.*(infinity|NaN) in the output.*, in float32.*subtract the largest exponent",
    ),
    "DividesByNothing": ({"extremes.few"}, "NaN in the output"),
    "DividesByZeroTokens": ({"extremes.identical"}, "tokens that are all zero.*NaN"),
    "SingleInside": ({"precision.float64"}, "as of float32.*x.float\\(\\)"),
    "FailsInDouble": ({"precision.float64"}, "RuntimeError.*examples.py:\\d+"),
    "CoarseInBfloat16": ({"autocast.bfloat16"}, "within 0.05 of float32's output"),
    "HalfTheFlops": ({"cost.flops"}, "0.5 times as many.*HalfTheFlops.flops.*2 per multiply-add"),
    "LossOverTheBatch": ({"shapes.outputs"}, "the loss 'size' as a tensor of shape \\(\\).*keep the batch"),
    "OneForTheSequence": ({"shapes.outputs"}, "a tensor of shape \\(1, 8\\)"),
    "FailsAtOneToken": ({"shapes.outputs"}, "ValueError: variance of one token.*examples.py:\\d+"),
    "NeedsContiguous": ({"shapes.strides"}, "reshape\\(\\) in place of view\\(\\)"),
    "ClaimsDecoding": ({"declarations.methods"}, "no initial_state and no step in ClaimsDecoding"),
    "MisspeltDecay": ({"declarations.no_weight_decay"}, "'gates.bias'"),
    "IgnoresContext": ({"context.attended"}, "the same for another context"),
    "SeesPaddedContext": ({"context.attended"}, "mask keys with context_mask"),
    "MapOfTheFuture": ({"attention_map.weights"}, "zero weight on padding"),
    "OtherMap": ({"attention_map.consistent"}, "the same weights as forward"),
}


def checked(kind: type[Mixer], *, compiled: bool = False) -> Report:
    """All checks; compilation, which takes longer than all others, only where it is asked for."""
    checks = [check for check in all_checks() if compiled or check.name != COMPILATION]
    return run(MixerFactory(kind), [SPEC, CAUSAL] if kind.capabilities().causal else [SPEC], checks=checks)


def told(result: Result) -> str:
    return f"{result.expected} {result.seen} {result.look_at}"


def test_the_sound_example_passes_everything_that_there_is() -> None:
    report = checked(Sound, compiled=True)
    assert [told(result) for result in report.having("failed")] == []
    # Those of other mechanisms: a twin, our module's values, a mixer that is not causal.
    left = {result.check for result in report.having("not applicable")}
    assert left == {"agreement.float32", "agreement.float64", "attention_map.consistent", "causality.refusal"}


def test_there_is_an_example_for_each_check() -> None:
    kinds = {name for name, kind in vars(examples).items() if inspect.isclass(kind) and issubclass(kind, Mixer)}
    assert set(WRONG) == kinds - {"Mixer", "MultiHeadAttention", "Sound", "Bare", "Quadratic"}
    elsewhere = {"agreement.float32", "agreement.float64", "isolation.interleaved", "scaling.memory", "scaling.seconds"}
    assert set().union(*(names for names, _ in WRONG.values())) | elsewhere == {check.name for check in all_checks()}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mixer_fails_the_check_that_is_meant_for_it(name: str) -> None:
    expected, words = WRONG[name]
    failed = checked(getattr(examples, name), compiled=COMPILATION in expected).having("failed")
    assert {result.check for result in failed} == expected, [told(result) for result in failed]
    assert any(re.search(words, told(result)) for result in failed), [told(result) for result in failed]
    for result in failed:
        assert re.search(r"\.py:\d+", result.look_at)
        assert result.place.startswith("dim 8, 2 heads, up to ")


def test_a_failure_names_the_line_of_the_method() -> None:
    (failed,) = checked(examples.SeesPadding).having("failed")
    assert "SeesPadding.forward (" in failed.look_at
    line = int(re.search(r"examples\.py:(\d+)", failed.look_at)[1])  # type: ignore[index]
    assert line == inspect.getsourcelines(Sound.forward)[1]


def test_a_mixer_that_cannot_be_built_is_one_failure() -> None:
    class Unbuilt(Sound):
        def __init__(self, spec: MixerSpec) -> None:
            raise KeyError("rank")

    report = run(MixerFactory(Unbuilt), [SPEC])
    (failed,) = report.results
    assert (failed.check, failed.status) == ("build", "failed")
    assert "KeyError: 'rank'" in failed.seen
    assert 'raise KeyError("rank")' in failed.look_at


def test_disagreement_with_the_twin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = naive.forward
    monkeypatch.setattr(naive, "forward", lambda *inputs: 1.01 * right(*inputs))
    checks = [check for check in all_checks() if check.name.startswith("agreement")]
    for result in run(MixerFactory(MultiHeadAttention), [SPEC], checks=checks).results:
        assert result.status == "failed"
        assert "the output of the naive twin" in result.expected


def test_wrong_gradients_of_ours_are_found_by_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MultiHeadAttention.forward
    monkeypatch.setattr(
        MultiHeadAttention, "forward", lambda self, *inputs: examples._Doubled.apply(right(self, *inputs))
    )
    checks = [check for check in all_checks() if check.name == "agreement.float64"]
    (result,) = run(MixerFactory(MultiHeadAttention), [SPEC], checks=checks).results
    assert "the gradients of the naive twin" in result.expected


def test_memory_that_is_claimed_linear_and_is_not() -> None:
    checks = [check for check in all_checks() if check.name == "scaling.memory"]
    (result,) = run(MixerFactory(examples.Quadratic), [SPEC], costly=True, checks=checks).results
    assert re.search(r"memory of N\^1 at most.*N\^(1\.[5-9]|2\.0).*tensors of tokens by tokens", told(result))
    (result,) = run(MixerFactory(Sound), [SPEC], costly=True, checks=checks).results
    assert result.status == "passed"


@pytest.mark.parametrize(("exponent", "status"), [(1.2, "passed"), (1.9, "failed")])
def test_time_that_is_claimed_linear_and_is_not(monkeypatch: pytest.MonkeyPatch, exponent: float, status: str) -> None:
    measured = Scaling((1024, 4096), (0.01, 0.1), (10, 40), exponent, 1.0)
    monkeypatch.setattr("reattend.conformance.checks.scaling.scaling", lambda *a, **k: measured)
    checks = [check for check in all_checks() if check.name == "scaling.seconds"]
    (result,) = run(MixerFactory(examples.Quadratic), [SPEC], costly=True, checks=checks).results
    assert result.status == status
    assert "from 10.0 ms to 100.0 ms between 1024 and 4096 tokens" in result.note + result.seen


def test_a_gradient_that_is_meant_to_be_another_is_not_compared() -> None:
    class Estimated(examples.WrongGradient):
        claims = examples.replace(examples.EVERYTHING, reasons={"gradient": "a lower bound, as published"})

    report = checked(Estimated)
    assert report.having("failed") == []
    (result,) = (result for result in report.results if result.check == "gradients.finite_differences")
    assert result.note == "a lower bound, as published"


def test_the_random_stream_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    checked(Sound)
    assert torch.equal(before, torch.get_rng_state())


def test_the_page_has_failures_before_all_else() -> None:
    page = as_text(checked(examples.SeesPadding))
    lines = page.splitlines()
    assert re.fullmatch(r"SeesPadding: 1 of \d+ checks failed, \d+ do not apply", lines[0])
    words = ("FAILED", "\n  expected", "\n  seen", "\n  look at", "\n  built for", "\npassed", "\nnot applicable")
    order = [page.index(word) for word in words]
    assert order == sorted(order)
    assert max(map(len, lines)) <= 130


def result_of(report: Report, name: str) -> Any:
    return next(result for result in report.results if result.check == name)


def test_what_follows_from_an_earlier_failure_is_not_told_again() -> None:
    report = checked(examples.ChangesItsInput)
    assert result_of(report, "padding.content").note == "first mend isolation.inputs"
