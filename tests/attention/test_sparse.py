"""The sparse patterns against their twin, as masked softmax, and in their properties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.kernels import sparse
from reattend.attention.naive.kernels import sparse as naive
from reattend.attention.ops.flex_pattern import attend_pattern

STRIDED = {"name": "sparse", "pattern": "strided", "window": 3}
FIXED = {"name": "sparse", "pattern": "fixed", "window": 4, "num_summaries": 2}
PATTERNS = [STRIDED, FIXED]
WINDOWS = [*PATTERNS, {**STRIDED, "window": 1}, {**FIXED, "num_summaries": 1}, {"name": "sparse", "window": 30}]


@pytest.fixture
def blocks_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences in many blocks; with the true smallest block they are one."""
    monkeypatch.setattr(sparse, "SMALLEST_BLOCK", 2)


def padding(length: int) -> Tensor:
    # Anywhere, not at the end alone, and a sample without a real token.
    return torch.rand(3, length) < torch.tensor([0.8, 0.4, 0.0])[:, None]


def one_by_one(mixer: MultiHeadAttention, x: Tensor) -> Tensor:
    state, outs = mixer.initial_state(len(x)), []
    for t in range(x.shape[1]):
        y, state = mixer.step(x[:, t], state)
        outs.append(y)
    return torch.stack(outs, dim=1)


@pytest.mark.parametrize("kernel", WINDOWS)
@pytest.mark.parametrize(
    "slots",
    [
        {},
        {"causal": True},
        {"causal": True, "recenter": {"beta": 0.5}},
        {"scaled_heads": {"scales": [2, 1]}},
        {"scaled_heads": {"scales": [3, 5], "pooling": "stride"}, "recenter": {"beta": 0.5, "learnable": True}},
    ],
)
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, blocks_of_two: None, kernel: Any, slots: Any, prefix: int, padded: bool
) -> None:
    causal, options = slots.get("causal", False), {k: v for k, v in slots.items() if k != "causal"}
    mixer = build({"kernel": kernel, **options}, length=11, prefix_tokens=prefix, causal=causal)
    x = torch.randn(3, 11, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, padding(11) if padded else None)
    assert forward < 1e-10
    assert backward < 1e-9


@pytest.mark.parametrize("kernel", PATTERNS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 70, 131])
def test_float32_is_near_masked_softmax_in_blocks_of_64(build: Any, kernel: Any, causal: bool, length: int) -> None:
    mixer = build({"kernel": {**kernel, "window": 9}}, length=length, causal=causal, dtype=torch.float32)
    x, real = torch.randn(3, length, 8), padding(length)
    _, _, v = mixer._queries_keys_values(x)
    for mask in (None, real):
        wanted = mixer._merge([mixer.attention_map(x, mask) @ v], x.dtype)
        if mask is not None:
            wanted = wanted.masked_fill(~mask.any(1)[:, None, None], 0.0)
        assert torch.allclose(mixer(x, mask), wanted, atol=3e-6)


@pytest.mark.parametrize("kernel", PATTERNS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_attention_map_is_the_pattern(build: Any, kernel: Any, causal: bool) -> None:
    mixer = build({"kernel": kernel}, length=14, prefix_tokens=1, causal=causal)
    weights = mixer.attention_map(torch.randn(1, 14, 8, dtype=torch.float64))
    wanted = torch.tensor([[naive.sees(i, j, mixer.kernel) for j in range(14)] for i in range(14)])
    wanted = wanted.tril() if causal else wanted
    assert torch.equal(weights[0] > 0, wanted.expand(2, 14, 14))
    assert torch.allclose(weights.sum(-1), torch.ones(()).double())


@pytest.mark.parametrize("kernel", [{**STRIDED, "window": 13}, {**STRIDED, "window": 1}, {**FIXED, "num_summaries": 4}])
@pytest.mark.parametrize("causal", [False, True])
def test_a_pattern_of_all_tokens_is_softmax(build: Any, blocks_of_two: None, kernel: Any, causal: bool) -> None:
    x, real = torch.randn(3, 13, 8, dtype=torch.float64), padding(13)
    got = build({"kernel": {"name": "sparse", **kernel}}, length=13, causal=causal)(x, real)
    assert torch.allclose(got, build({}, length=13, causal=causal)(x, real), atol=1e-12)


@pytest.mark.parametrize("kernel", PATTERNS)
def test_padding_changes_nothing(build: Any, blocks_of_two: None, kernel: Any) -> None:
    options = {"kernel": kernel, "scaled_heads": {"scales": [1, 4]}, "recenter": {"beta": 0.5}}
    mixer = build(options, length=30)
    x = torch.randn(2, 10, 8, dtype=torch.float64)
    for extra in (1, 3, 20):
        padded = torch.cat([x, 100 * torch.randn(2, extra, 8, dtype=torch.float64)], dim=1)
        real = torch.arange(10 + extra).expand(2, -1) < 10
        assert torch.allclose(mixer(padded, real)[:, :10], mixer(x), atol=1e-12)


@pytest.mark.parametrize("kernel", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [11, 150])
def test_the_future_does_not_move_a_bit(build: Any, kernel: Any, dtype: torch.dtype, length: int) -> None:
    mixer = build({"kernel": kernel}, length=length, causal=True, prefix_tokens=1, dtype=dtype)
    x = torch.randn(2, length, 8, dtype=dtype)
    for t in (1, 4, length - 1):
        other = x.clone()
        other[:, t:] = 50 * torch.randn_like(x[:, t:])
        assert torch.equal(mixer(x)[:, :t], mixer(other)[:, :t])


@pytest.mark.parametrize("kernel", PATTERNS)
@pytest.mark.parametrize("recenter", [None, {"beta": 0.5}])
@pytest.mark.parametrize("prefix", [0, 2])
def test_steps_are_the_causal_form(build: Any, kernel: Any, recenter: Any, prefix: int) -> None:
    mixer = build({"kernel": kernel, "recenter": recenter}, length=13, causal=True, prefix_tokens=prefix)
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    assert torch.allclose(one_by_one(mixer, x), mixer(x), atol=1e-12)


@pytest.mark.parametrize("kernel", PATTERNS)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_extreme_inputs_stay_finite(build: Any, kernel: Any, autocast: bool, causal: bool) -> None:
    mixer = build({"kernel": kernel}, causal=causal, dtype=torch.float32)
    x = torch.randn(4, 9, 8)
    x[0] *= 120 / x[0].abs().max()
    x[1] = x[1, :1]
    real = torch.ones(4, 9, dtype=torch.bool)
    real[2, 1:] = False
    real[3] = False
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = mixer(x, real)
    gradients = torch.autograd.grad(y.float().square().sum(), [x, *mixer.parameters()])
    assert all(t.isfinite().all() for t in (y, *gradients))
    assert not y[3].any()


@pytest.mark.parametrize("kernel", PATTERNS)
@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_is_near_float64(build: Any, largest_error: Any, kernel: Any, causal: bool) -> None:
    mixer = build({"kernel": kernel}, causal=causal, dtype=torch.float32)
    x = torch.randn(2, 9, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = mixer(x)
    assert largest_error(y, mixer.double()(x.double())) < 3e-2


@pytest.mark.parametrize("options", [{"kernel": k, "scaled_heads": {"scales": [2, 1]}} for k in PATTERNS])
def test_gradcheck(build: Any, blocks_of_two: None, options: Any) -> None:
    mixer = build(options, dim=4, length=6)
    real = torch.tensor([[True, True, False, True, True, True]])
    x = torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixer(x, real), x)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kernel", PATTERNS)
@pytest.mark.parametrize("causal", [False, True])
def test_flex_attention_computes_the_same_forward(build: Any, kernel: Any, causal: bool) -> None:
    mixer = build({"kernel": kernel}, length=150, prefix_tokens=1, causal=causal, dtype=torch.float32)
    real = padding(150)
    with torch.no_grad():
        q, k, v = mixer._queries_keys_values(torch.randn(3, 150, 8))
        got = attend_pattern(q, k, v, mixer.kernel._sees, real)
    assert torch.allclose(got, mixer.kernel(q, k, v, real), atol=3e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", PATTERNS)
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu_flex_attention_and_blocks_are_the_cpu_form(build: Any, kernel: Any, causal: bool) -> None:
    x, real = torch.randn(3, 150, 64), padding(150)
    results = []
    for flex, device in ((False, "cpu"), (False, "cuda"), (True, "cuda")):
        options = {"kernel": {**kernel, "flex": flex}}
        mixer = build(options, dim=64, length=150, causal=causal, dtype=torch.float32).to(device)
        y = mixer(x.to(device), real.to(device))
        results.append([y, *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.allclose(one, two.cpu(), rtol=2e-3, atol=2e-3 * one.abs().max().item())


class LargestTensor(TorchDispatchMode):
    """Number of elements of the largest storage that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements = max(self.elements, size)
        return result


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize("form", ["causal", "whole", "scaled"])
@pytest.mark.parametrize("padded", [False, True])
def test_no_tensor_is_quadratic_in_length(build: Any, pattern: str, form: str, padded: bool) -> None:
    length, window = 4096, 64
    options: dict[str, Any] = {"kernel": {"name": "sparse", "pattern": pattern}}
    if form == "scaled":
        options["scaled_heads"] = {"scales": [2, 3]}
    mixer = build(options, length=length, causal=form == "causal", dtype=torch.float32)
    real = torch.arange(length)[None] < length - 100 if padded else None
    with LargestTensor() as largest:
        mixer(torch.randn(1, length, 8), real).sum().backward()
    assert largest.elements <= 4 * length * window


@pytest.mark.parametrize(
    ("options", "causal"),
    [({"kernel": STRIDED, "scaled_heads": {"scales": [1, 3]}}, False), ({"kernel": FIXED}, True)],
)
def test_compiles_without_a_graph_break(build: Any, options: Any, causal: bool) -> None:
    mixer = build(options, dtype=torch.float32, causal=causal)
    x, real = torch.randn(3, 9, 8), padding(9)
    torch._dynamo.reset()
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    wanted = torch.autograd.grad(mixer(x, real).square().sum(), list(mixer.parameters()))
    got = torch.autograd.grad(compiled(x, real).square().sum(), list(mixer.parameters()))
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("length", "window"), [(1, 1), (29, 4), (100, 8), (2048, 64), (4096, 64), (4097, 64), (16384, 128)]
)
def test_the_window_is_about_the_square_root_of_the_length(length: int, window: int) -> None:
    assert sparse.SparseKernel(MixerSpec(8, 2, length)).window == window
    assert sparse.SparseKernel(MixerSpec(8, 2, length), window=7).window == 7


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": 0}, "window=0 must be at least 1"),
        ({"window": 4, "num_summaries": 5}, "num_summaries=5 must be from 1 to the window of 4"),
        ({"pattern": "random"}, "pattern"),
    ],
)
def test_wrong_options_are_refused(options: Any, reason: str) -> None:
    problems = MultiHeadAttention.problems(MixerSpec(8, 2, 9), kernel={"name": "sparse", **options})
    assert any(reason in problem for problem in problems)


def test_it_says_what_it_cannot_do() -> None:
    capabilities = MultiHeadAttention.capabilities(kernel="sparse")
    assert capabilities.causal
    assert capabilities.decoding
    assert not capabilities.context
    assert "positions" in capabilities.reasons["context"]
    assert capabilities.time_exponent == 1.5
    with pytest.raises(ValueError, match="takes no context"):
        MultiHeadAttention(MixerSpec(8, 2, 9), kernel="sparse")(torch.randn(1, 9, 8), None, torch.randn(1, 9, 8))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_a_window_beyond_the_sequence_is_softmax_attention_and_costs_no_more(
    build: Any, pattern: str, causal: bool
) -> None:
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    real = torch.arange(11)[None] < torch.tensor([[11], [7]])
    softmax = build({"kernel": "softmax"}, length=11, causal=causal)
    for window in (11, 12, 10**12):
        sparse = build({"kernel": {"name": "sparse", "pattern": pattern, "window": window}}, length=11, causal=causal)
        for mask in (None, real):
            assert torch.allclose(sparse(x, mask), softmax(x, mask), rtol=0, atol=1e-12)


def test_no_sample_gives_no_sample(build: Any) -> None:
    for kernel in ("sparse", "top_k", "softmax", "linear"):
        assert build({"kernel": kernel})(torch.zeros(0, 9, 8, dtype=torch.float64)).shape == (0, 9, 8)
