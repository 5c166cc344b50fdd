"""Nyströmformer: the twin, what is exact about it, padding, extremes and Hugging Face's module."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.naive import multihead as naive
from reattend.attention.ops.token_convolution import convolve_tokens
from reattend.efficiency.flops import count_flops


def options(**kernel: Any) -> dict[str, Any]:
    return {"kernel": {"name": "nystromformer", "num_landmarks": 3, "conv_kernel_size": 5, **kernel}}


def scattered_mask(length: int) -> torch.Tensor:
    """Padding anywhere; all real, few more than the landmarks, as many, fewer, one and none."""
    mask = torch.zeros(6, length, dtype=torch.bool)
    for sample, count in enumerate((length, 5, 3, 2, 1, 0)):
        mask[sample, torch.randperm(length, generator=torch.Generator().manual_seed(sample))[:count]] = True
    return mask


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9, 13])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("conv_kernel_size", [None, 1, 5, 9])
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, length: int, padded: bool, conv_kernel_size: int | None
) -> None:
    mixer = build(options(conv_kernel_size=conv_kernel_size), length=length)
    x = torch.randn(6, length, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, scattered_mask(length) if padded and length >= 5 else None)
    assert forward < 1e-10
    assert backward < 1e-8


@pytest.mark.parametrize("recenter", [{"beta": 0.4, "learnable": True}, {"std": True}])
def test_recentred_outputs_and_gradients_are_the_twins(build: Any, errors_to_twin: Any, recenter: Any) -> None:
    mixer = build({**options(), "recenter": recenter, "residual": True}, length=11, prefix_tokens=1)
    forward, backward = errors_to_twin(mixer, torch.randn(2, 11, 8, dtype=torch.float64))
    assert forward < 1e-10
    assert backward < 1e-7


def test_float32_is_near_the_twin(build: Any, errors_to_twin: Any) -> None:
    mixer = build(options(num_landmarks=8), length=50, dtype=torch.float32)
    forward, backward = errors_to_twin(mixer, torch.randn(2, 50, 8))
    assert forward < 1e-5
    assert backward < 1e-4


def test_autocast_is_near_the_twin_of_rounded_inputs(build: Any, largest_error: Any) -> None:
    mixer = build(options(num_landmarks=8), dim=32, length=100, dtype=torch.float32)
    x = torch.randn(2, 100, 32).bfloat16().float()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(parameter.bfloat16())
        twin = naive.forward(mixer, x)
        with torch.autocast("cpu", torch.bfloat16):
            assert largest_error(mixer(x), twin) < 3e-2


def test_gradcheck(build: Any) -> None:
    mixer = build(options(num_landmarks=2, conv_kernel_size=3), dim=4, length=5)
    real = torch.tensor([[True, True, False, True, True]])
    x = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, real))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()))


def test_as_many_landmarks_as_tokens_are_softmax(build: Any) -> None:
    mixer = build(options(num_landmarks=9, conv_kernel_size=None))
    softmax = build({"kernel": "softmax"})
    softmax.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert torch.allclose(mixer(x), softmax(x), rtol=0, atol=1e-12)


def test_a_converged_inverse_of_landmarks_that_are_tokens_is_softmax(build: Any) -> None:
    """With pairs of equal tokens the landmarks are all tokens there are, and A A^+ A = A."""
    mixer = build(options(num_landmarks=5, conv_kernel_size=None, iterations=40), length=10)
    softmax = build({"kernel": "softmax"})
    softmax.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 5, 8, dtype=torch.float64).repeat_interleave(2, dim=1)
    assert torch.allclose(mixer(x), softmax(x), rtol=0, atol=1e-8)


def test_padding_is_as_if_it_were_not_there(build: Any) -> None:
    mixer = build(options())
    x = torch.randn(6, 9, 8, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([9, 5, 3, 2, 1, 0])[:, None]
    y = mixer(x, mask)
    assert torch.allclose(mixer(x.masked_fill(~mask[..., None], 100.0), mask)[mask], y[mask], rtol=0, atol=1e-12)
    for sample, count in enumerate((9, 5, 3, 2, 1)):
        alone = mixer(x[sample : sample + 1, :count])[0]
        assert torch.allclose(y[sample, :count], alone, rtol=0, atol=1e-11)
    assert not y[5].any()


def test_a_sample_does_not_depend_on_the_others(build: Any) -> None:
    mixer = build(options())
    x = torch.randn(3, 9, 8, dtype=torch.float64)
    assert torch.allclose(mixer(x)[:1], mixer(torch.cat([x[:1], 30 * x[1:]]))[:1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
def test_attention_map_is_what_the_values_are_weighted_with(build: Any, padded: bool) -> None:
    mixer = build(options(conv_kernel_size=None))
    x = torch.randn(6, 9, 8, dtype=torch.float64)
    mask = scattered_mask(9) if padded else None
    weights = mixer.attention_map(x, mask)
    assert weights.shape == (6, 2, 9, 9)
    v = mixer.qkv(x).chunk(3, dim=-1)[2].unflatten(2, (2, 4)).transpose(1, 2)
    y = mixer.proj((weights @ v).transpose(1, 2).flatten(2))
    wanted = mixer(x, mask)
    real = slice(0, 5) if padded else slice(None)
    assert torch.allclose(y[real], wanted[real], rtol=0, atol=1e-11)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("case", ["large", "identical", "one_real", "all_but_one_masked", "near_singular"])
def test_extremes_are_finite(build: Any, case: str, autocast: bool) -> None:
    mixer = build(options(num_landmarks=8), length=40, dtype=torch.float32)
    x = torch.randn(2, 40, 8)
    mask = None
    if case == "large":
        with torch.no_grad():
            mixer.qkv.weight.mul_(120)
    elif case == "identical":
        x = x[:, :1].expand(-1, 40, -1).clone()
    elif case == "near_singular":
        x = x[:, :1] + 1e-4 * x
    else:
        mask = torch.zeros(2, 40, dtype=torch.bool)
        mask[:, 17] = True
        mask[1, :] = case == "one_real"
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = mixer(x, mask)
    y.float().square().sum().backward()
    assert y.isfinite().all()
    for tensor in (x, *mixer.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("scale", [30.0, 120.0])
def test_large_keys_are_near_the_twin(build: Any, largest_error: Any, scale: float) -> None:
    mixer = build(options(num_landmarks=4), length=21, dtype=torch.float32)
    x = scale * torch.randn(2, 21, 8)
    assert largest_error(mixer(x), naive.forward(mixer, x)) < 1e-3


@pytest.mark.parametrize(("length", "size"), [(1, 3), (7, 35), (64, 5), (65, 7), (130, 35), (200, 1)])
def test_the_convolution_is_torchs(length: int, size: int) -> None:
    x = torch.randn(2, 3, length, 4, dtype=torch.float64, requires_grad=True)
    filters = torch.randn(3, size, dtype=torch.float64, requires_grad=True)
    y = convolve_tokens(x, filters)
    wanted = torch.nn.functional.conv2d(x, filters[:, None, :, None], padding=(size // 2, 0), groups=3)
    cotangent = torch.randn_like(wanted)
    assert torch.allclose(y, wanted, rtol=0, atol=1e-12)
    got = torch.autograd.grad((y * cotangent).sum(), (x, filters))
    for gradient, other in zip(got, torch.autograd.grad((wanted * cotangent).sum(), (x, filters)), strict=True):
        assert torch.allclose(gradient, other, rtol=0, atol=1e-11)


def test_compiles_in_one_graph(build: Any) -> None:
    mixer = build(options())
    x = torch.randn(6, 9, 8, dtype=torch.float64, requires_grad=True)
    mask = scattered_mask(9)
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    for real in (None, mask):
        got = torch.autograd.grad(compiled(x, real).square().sum(), x)[0]
        assert torch.allclose(got, torch.autograd.grad(mixer(x, real).square().sum(), x)[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", [{}, {"num_landmarks": 64}, {"conv_kernel_size": None}, {"iterations": 2}])
def test_flops_are_as_counted(kernel: dict[str, Any]) -> None:
    mixer = MultiHeadAttention(MixerSpec(16, 4, 150), **options(**kernel))
    for length in (33, 150):
        assert count_flops(mixer, {"x": torch.randn(1, length, 16)}) == mixer.flops(length)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ({"num_landmarks": 0}, "num_landmarks=0 must be at least 1"),
        ({"iterations": -1}, "iterations=-1"),
        ({"conv_kernel_size": 4}, "conv_kernel_size=4 must be odd"),
        ({"conv_kernel_size": 3.5}, "'conv_kernel_size'"),
    ],
)
def test_options_that_cannot_work_are_refused(kernel: dict[str, Any], says: str) -> None:
    assert says in MultiHeadAttention.problems(MixerSpec(8, 2, 9), **options(**kernel))[0]


def test_places_that_cannot_work_are_refused() -> None:
    assert "landmarks average" in MultiHeadAttention.problems(MixerSpec(8, 2, 9, causal=True), **options())[0]
    scaled = {**options(), "scaled_heads": {"scales": [1, 2]}}
    assert "set scales=none" in MultiHeadAttention.problems(MixerSpec(8, 2, 9), **scaled)[0]
    mixer = MultiHeadAttention(MixerSpec(8, 2, 9), **options())
    with pytest.raises(ValueError, match="takes no context"):
        mixer(torch.randn(1, 9, 8), None, torch.randn(1, 4, 8))


@pytest.mark.parametrize("length", [16, 24])
@pytest.mark.parametrize("size", [None, 5])
def test_is_hugging_faces_where_the_length_divides(build: Any, length: int, size: int | None) -> None:
    module = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
    transformers = pytest.importorskip("transformers")
    config = transformers.NystromformerConfig(
        hidden_size=8,
        num_attention_heads=2,
        num_landmarks=4,
        segment_means_seq_len=length,
        conv_kernel_size=size or 5,
        attention_probs_dropout_prob=0.0,
    )
    other = module.NystromformerSelfAttention(config).double()
    other.conv_kernel_size = size
    other.init_option = "exact"  # The paper's norms of each matrix; the default takes the largest of the batch.
    mixer = build(options(num_landmarks=4, conv_kernel_size=size), length=length)
    with torch.no_grad():
        for layer, weight, bias in zip(
            (other.query, other.key, other.value), mixer.qkv.weight.chunk(3), mixer.qkv.bias.chunk(3), strict=True
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        if size is not None:
            other.conv.weight.copy_(mixer.kernel.filters[:, None, :, None])
    x = torch.randn(3, length, 8, dtype=torch.float64)
    assert torch.allclose(mixer(x), mixer.proj(other(x)[0]), rtol=0, atol=1e-10)
