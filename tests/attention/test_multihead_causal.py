"""Causal forms: blind to the future, equal step by step, linear in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

CAUSAL = {
    "softmax": {},
    "unfused": {"kernel": {"name": "softmax", "fused": False}},
    "bn": {"recenter": {"beta": 0.6, "learnable": True}},
    "bn_std": {"recenter": {"beta": 0.6, "std": True}},
    "bn_unfused": {"recenter": {"beta": 0.6}, "kernel": {"name": "softmax", "fused": False}},
    "linear": {"kernel": "linear", "residual": True},
}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("pad", [False, True])
def test_outputs_do_not_change_by_a_bit_with_the_future(
    build: Any, options: dict[str, Any], precision: torch.dtype, pad: bool
) -> None:
    mixer = build(options, length=150, causal=True, dtype=torch.float32)
    x = torch.randn(2, 150, 8)
    real = torch.rand(2, 150) < 0.8 if pad else None
    for cut in (1, 64, 101):
        other = torch.cat([x[:, :cut], 30 * torch.randn(2, 150 - cut, 8)], dim=1)
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            assert torch.equal(mixer(x, real)[:, :cut], mixer(other, real)[:, :cut])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@pytest.mark.parametrize("options", CAUSAL.values(), ids=CAUSAL)
def test_decoding_step_by_step_is_the_parallel_form(
    build: Any, options: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    mixer = build(options, length=70, causal=True, dtype=dtype)
    x = torch.randn(2, 70, 8, dtype=dtype)
    state, steps = mixer.initial_state(2), []
    for t in range(70):
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
    assert all(tensor.shape[0] == 2 for tensor in state.values())
    assert torch.allclose(torch.stack(steps, 1), mixer(x), rtol=0, atol=tolerance)


@pytest.mark.parametrize("options", CAUSAL.values(), ids=CAUSAL)
def test_decoding_under_autocast(build: Any, options: dict[str, Any], largest_error: Any) -> None:
    mixer = build(options, causal=True, dtype=torch.float32)
    x = torch.randn(2, 9, 8)
    with torch.autocast("cpu", torch.bfloat16):
        state, steps = mixer.initial_state(2), []
        for t in range(9):
            y, state = mixer.step(x[:, t], state)
            steps.append(y)
    assert largest_error(torch.stack(steps, 1), mixer(x)) < 3e-2


@pytest.mark.parametrize("length", [63, 64, 65, 200])
def test_chunks_of_the_linear_kernel_are_its_quadratic_form(build: Any, length: int) -> None:
    kernel = build({"kernel": "linear"}, causal=True).kernel
    q, k, v = torch.randn(3, 2, 2, length, 4, dtype=torch.float64)
    real = torch.rand(2, length) < 0.8
    assert torch.allclose(kernel(q, k, v, real), kernel.weights(q, k, real) @ v, rtol=0, atol=1e-12)


def test_memory_of_the_causal_linear_kernel_is_linear_in_length(build: Any) -> None:
    mixer = build({"kernel": "linear"}, dim=64, causal=True, dtype=torch.float32)

    def saved(length: int) -> int:
        sizes = []
        x = torch.randn(1, length, 64, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            mixer(x)
        return sum(sizes)

    assert saved(1024) < 2.1 * saved(512)
    assert saved(512) < 40 * 512 * 64


def test_only_a_causal_mixer_decodes(build: Any) -> None:
    mixer = build({})
    with pytest.raises(ValueError, match="causal=True"):
        mixer.step(torch.randn(2, 8, dtype=torch.float64), mixer.initial_state(2))
