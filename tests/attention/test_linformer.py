"""Linformer: the twin at every sharing, padding, length, extremes and what is exact about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reattend.attention import MixerFactory, MixerSpec, MultiHeadAttention
from reattend.attention.linformer import Linformer
from reattend.attention.naive import linformer as naive
from reattend.efficiency.flops import count_flops
from reattend.errors import ReattendError

SHARINGS = ["none", "headwise", "key_value", "layerwise"]


def build(length: int = 9, dtype: torch.dtype = torch.float64, **options: Any) -> Linformer:
    torch.manual_seed(0)
    mixer = Linformer(MixerSpec(8, 2, length), **{"num_rows": 4, **options}).to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return mixer


def errors(mixer: Linformer, largest_error: Any, x: torch.Tensor, mask: torch.Tensor | None) -> tuple[float, float]:
    leaves = [x.requires_grad_(), *mixer.parameters()]
    y, twin = mixer(x, mask), naive.forward(mixer, x, mask)
    cotangent = torch.randn_like(twin)
    got = torch.autograd.grad((y * cotangent).sum(), leaves)
    wanted = torch.autograd.grad((twin * cotangent).sum(), leaves)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    return largest_error(y, twin), max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True))


def padding(length: int) -> torch.Tensor:
    """Padding anywhere, one real token, and none."""
    mask = torch.rand(4, length, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[2:] = False
    mask[2, length // 2] = True
    return mask


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("length", "num_rows"), [(9, 4), (7, 4), (5, 1), (3, 16)])
def test_outputs_and_gradients_are_the_twins(
    largest_error: Any, sharing: str, padded: bool, bias: bool, length: int, num_rows: int
) -> None:
    mixer = build(sharing=sharing, bias=bias, num_rows=num_rows)
    x = torch.randn(4, length, 8, dtype=torch.float64)
    forward, backward = errors(mixer, largest_error, x, padding(length) if padded else None)
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize("sharing", SHARINGS)
def test_float32_is_near_the_twin(largest_error: Any, sharing: str) -> None:
    mixer = build(50, torch.float32, sharing=sharing, num_rows=16)
    forward, backward = errors(mixer, largest_error, torch.randn(4, 50, 8), padding(50))
    assert forward < 5e-6
    assert backward < 2e-5


@pytest.mark.parametrize("sharing", SHARINGS)
def test_autocast_is_near_the_twin_of_rounded_inputs(largest_error: Any, sharing: str) -> None:
    mixer = Linformer(MixerSpec(32, 2, 60), num_rows=8, sharing=sharing)
    x = torch.randn(4, 60, 32).bfloat16().float()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(parameter.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            y = mixer(x, padding(60))
    assert largest_error(y, naive.forward(mixer, x, padding(60))) < 3e-2


@pytest.mark.parametrize("sharing", SHARINGS)
def test_gradcheck(sharing: str) -> None:
    mixer = build(5, sharing=sharing, num_rows=2)
    real = torch.tensor([[True, True, False, True]])
    x = torch.randn(1, 4, 8, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, real))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()), fast_mode=True)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_identity_rows_are_softmax(sharing: str) -> None:
    mixer = build(sharing=sharing, num_rows=9)
    softmax = MultiHeadAttention(MixerSpec(8, 2, 9)).double()
    softmax.load_state_dict(mixer.state_dict(), strict=False)
    with torch.no_grad():
        mixer.rows.weight.copy_(torch.eye(9))
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert torch.allclose(mixer(x), softmax(x), rtol=0, atol=1e-12)


def test_rows_that_average_windows_are_mean_pooling() -> None:
    mixer = build(12, num_rows=3, sharing="key_value")
    pooled = MultiHeadAttention(MixerSpec(8, 2, 12), scaled_heads={"scales": 4}).double()
    pooled.load_state_dict(mixer.state_dict(), strict=False)
    with torch.no_grad():
        mixer.rows.weight.copy_(torch.eye(3).repeat_interleave(4, dim=1) / 4)
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    assert torch.allclose(mixer(x), pooled(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_sharing_is_the_unshared_form_with_equal_matrices(sharing: str) -> None:
    shared, apart = build(sharing=sharing), build(sharing="none")
    with torch.no_grad():
        apart.rows.weight.copy_(shared.rows.weight.expand_as(apart.rows.weight))
    rest = {name: value for name, value in shared.state_dict().items() if not name.startswith("rows")}
    apart.load_state_dict(rest, strict=False)
    x = torch.randn(4, 7, 8, dtype=torch.float64)
    assert torch.allclose(shared(x, padding(7)), apart(x, padding(7)), rtol=0, atol=1e-12)


def test_matrices_of_each_sharing() -> None:
    shapes = {sharing: tuple(build(sharing=sharing).rows.weight.shape) for sharing in SHARINGS}
    one = (1, 1, 4, 9)
    assert shapes == {"none": (2, 2, 4, 9), "headwise": (2, 1, 4, 9), "key_value": one, "layerwise": one}


@pytest.mark.parametrize("sharing", ["none", "headwise"])
def test_padding_is_as_if_it_were_not_there(sharing: str) -> None:
    mixer = build(sharing=sharing)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    real = torch.arange(9) < torch.tensor([9, 5])[:, None]
    y = mixer(x, real)
    assert torch.allclose(mixer(x.masked_fill(~real[..., None], 100.0), real)[real], y[real], rtol=0, atol=1e-12)
    assert torch.allclose(y[1, :5], mixer(x[1:, :5])[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("sharing", ["none", "headwise"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("case", ["large", "identical", "masked"])
def test_extremes_are_finite(sharing: str, autocast: bool, case: str) -> None:
    mixer = build(40, torch.float32, sharing=sharing)
    x = torch.randn(4, 40, 8)
    if case == "large":
        x = 120 * x
    elif case == "identical":
        x = x[:, :1].repeat(1, 40, 1)
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = mixer(x, padding(40) if case == "masked" else None)
    y.float().square().mean().backward()
    assert y.isfinite().all()
    assert not (case == "masked" and y[3].any())
    for tensor in (x, *mixer.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


def test_dropout_is_in_training_alone() -> None:
    mixer = build(dropout=0.5)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert not torch.equal(mixer(x), mixer(x))
    assert torch.equal(mixer.eval()(x), mixer(x))


@pytest.mark.parametrize("sharing", ["none", "key_value"])
def test_compiles_in_one_graph(sharing: str) -> None:
    mixer = build(sharing=sharing)
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    x = torch.randn(4, 9, 8, dtype=torch.float64)
    for real in (None, padding(9)):
        assert torch.allclose(compiled(x, real), mixer(x, real), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("bias", [False, True])
def test_flops_are_as_counted(sharing: str, bias: bool) -> None:
    mixer = Linformer(MixerSpec(16, 4, 40), num_rows=8, sharing=sharing, bias=bias)
    for length in (33, 40):
        assert count_flops(mixer, {"x": torch.randn(1, length, 16)}) == mixer.flops(length)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_rows": 0}, "num_rows=0 must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"sharing": "layers"}, "'none' or 'headwise' or 'key_value' or 'layerwise'"),
        ({"rows": 3}, "no option 'rows'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], says: str) -> None:
    assert says in MixerFactory(Linformer, options).problems(MixerSpec(8, 2, 9))[0]
    with pytest.raises(ReattendError, match="Linformer cannot be built"):
        MixerFactory(Linformer, options)(MixerSpec(8, 2, 9))


def test_places_and_inputs_that_cannot_work_are_refused() -> None:
    assert "mixes tokens of the future" in Linformer.problems(MixerSpec(8, 2, 9, causal=True))[0]
    mixer, x = build(), torch.randn(1, 9, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"10 tokens, but .* max_length=9"):
        mixer(torch.randn(1, 10, 8, dtype=torch.float64))
    with pytest.raises(ValueError, match="takes no context"):
        mixer(x, None, x)
    with pytest.raises(ValueError, match="must be bool"):
        mixer(x, torch.ones(1, 9))
