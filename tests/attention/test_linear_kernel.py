"""Linear attention: its causal forms, log scales of keys, feature maps, and the kernel that is made of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.feature_maps.taylor import Taylor
from reattend.attention.naive import multihead as naive
from reattend.attention.ops.linear_attention import initial_state, linear_attention, linear_step
from reattend.attention.slots import FeatureMap

FORMS = ("chunked", "cumsum", "recurrent")
MAPS = ("elu_plus_one", "relu", "taylor", "identity")
KERNELS: list[dict[str, Any]] = [
    {"feature_map": "relu"},
    {"feature_map": "taylor"},
    {"feature_map": "identity", "normalised": False},
    {"feature_map": "identity", "normalised": False, "length_power": 1.0},
    {"feature_map": "elu_plus_one", "normalised": False, "length_power": 0.5},
    {"feature_map": "taylor", "normalised": False},
    {"feature_map": "relu", "query_feature_map": "elu_plus_one"},
    {"feature_map": "elu_plus_one", "query_feature_map": "identity", "normalised": False},
    {"feature_map": "performer"},
    {"feature_map": {"name": "performer", "kind": "relu"}, "normalised": False},
]


def ids(options: dict[str, Any]) -> str:
    return " ".join(f"{value}" for value in options.values())


def factors(
    length: int, scaled: bool, dtype: torch.dtype = torch.float64, num_keys: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Query and key (2, 3, N, 5), value (2, 3, N, 4), log scale with padding at the start and a head without a key."""
    torch.manual_seed(length)
    num_keys = length if num_keys is None else num_keys
    query, key = torch.rand(2, 3, length, 5, dtype=dtype), torch.rand(2, 3, num_keys, 5, dtype=dtype)
    value = torch.randn(2, 3, num_keys, 4, dtype=dtype)
    if not scaled:
        return query, key, value, None
    scale = 3 * torch.randn(2, 3, num_keys, 1, dtype=dtype)
    scale[0, 0], scale[1, :, :2] = -torch.inf, -torch.inf
    return query, key * (scale > -torch.inf), value, scale


def written_out(
    query: Tensor, key: Tensor, value: Tensor, scale: Tensor | None, causal: bool, normalised: bool
) -> Tensor:
    similarity = query @ (key if scale is None else key * scale.exp()).mT
    similarity = similarity.tril() if causal else similarity
    total = similarity.sum(-1, keepdim=True) if normalised else torch.ones(())
    return similarity @ value / torch.where(total == 0, 1.0, total)


def worst(got: Any, wanted: Any) -> float:
    return max((g - w).abs().max().item() / max(1.0, w.abs().max().item()) for g, w in zip(got, wanted, strict=True))


CASES = list(itertools.product((True, False), (True, False), [(True, form) for form in FORMS] + [(False, "chunked")]))


@pytest.mark.parametrize(("normalised", "scaled", "form"), CASES)
@pytest.mark.parametrize("length", [1, 7, 32, 33, 75])
def test_all_forms_are_the_weights_times_the_values(
    length: int, normalised: bool, scaled: bool, form: tuple[bool, Any]
) -> None:
    causal, name = form
    *leaves, scale = factors(length, scaled, num_keys=None if causal else length + 3)
    for leaf in leaves:
        leaf.requires_grad_()
    out = linear_attention(*leaves, causal=causal, normalised=normalised, form=name, key_log_scale=scale)
    wanted = written_out(*leaves, scale, causal, normalised)
    cotangent = torch.randn_like(wanted)
    gradients = [torch.autograd.grad((y * cotangent).sum(), leaves) for y in (out, wanted)]
    assert worst([out], [wanted]) < 1e-11
    assert worst(*gradients) < 1e-10


@pytest.mark.parametrize(("normalised", "scaled", "form"), CASES)
def test_gradcheck(normalised: bool, scaled: bool, form: tuple[bool, Any]) -> None:
    *leaves, scale = factors(5, scaled)
    leaves = [leaf[:, :1].clone().requires_grad_() for leaf in leaves]
    scale = None if scale is None else scale[:, :1]

    def run(*leaves: Tensor) -> Tensor:
        return linear_attention(*leaves, causal=form[0], normalised=normalised, form=form[1], key_log_scale=scale)

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_no_form_sees_the_future_by_a_bit(form: Any, scaled: bool) -> None:
    query, key, value, scale = factors(75, scaled, torch.float32)
    for cut in (1, 32, 50):
        others = [torch.cat([x[:, :, :cut], 1e3 * torch.randn_like(x[:, :, cut:])], 2) for x in (query, key, value)]
        later = None if scale is None else torch.cat([scale[:, :, :cut], 200 * torch.randn(2, 3, 75 - cut, 1)], 2)
        out = linear_attention(query, key, value, causal=True, form=form, key_log_scale=scale)
        other = linear_attention(*others, causal=True, form=form, key_log_scale=later)
        assert torch.equal(out[:, :, :cut], other[:, :, :cut])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_steps_are_the_parallel_form(normalised: bool, scaled: bool) -> None:
    query, key, value, scale = factors(40, scaled)
    state = initial_state(2, 3, 5, 4, query.device, torch.float64, normalised=normalised, log_scaled=scale is not None)
    sizes, steps = {name: kept.shape for name, kept in state.items()}, []
    for t in range(40):
        token = [x[:, :, t : t + 1] for x in (query, key, value)]
        s = None if scale is None else scale[:, :, t : t + 1]
        out, state = linear_step(*token, state, normalised=normalised, key_log_scale=s)
        steps.append(out)
    assert {name: kept.shape for name, kept in state.items()} == sizes
    wanted = linear_attention(query, key, value, causal=True, normalised=normalised, key_log_scale=scale)
    assert worst([torch.cat(steps, 2)], [wanted]) < 1e-12


@pytest.mark.parametrize("shape", ["rising", "falling", "a peak"])
@pytest.mark.parametrize("form", [*FORMS, "not causal"])
def test_log_scales_beyond_the_range_of_exp(form: Any, shape: str) -> None:
    query, key, value, _ = factors(75, False, torch.float32)
    at = torch.linspace(-1, 1, 75)[:, None]
    scale = {"rising": 500 * at, "falling": -500 * at, "a peak": 300 - 500 * at.abs()}[shape].expand(2, 3, 75, 1)
    causal = form != "not causal"
    key.requires_grad_()
    out = linear_attention(query, key, value, causal=causal, form=form if causal else "chunked", key_log_scale=scale)
    logits = (query.double() @ key.double().mT).log() + scale.double().mT
    if causal:
        logits = logits.masked_fill(~torch.ones(75, 75, dtype=torch.bool).tril(), -torch.inf)
    assert worst([out.double()], [logits.softmax(-1) @ value.double()]) < 1e-5
    assert torch.autograd.grad(out.square().sum(), key)[0].isfinite().all()


def test_a_common_factor_of_keys_and_one_of_each_query_cancel() -> None:
    query, key, value, scale = factors(40, True)
    for causal in (False, True):
        out = linear_attention(query, key, value, causal=causal, key_log_scale=scale)
        factor = 100 * torch.rand(2, 3, 40, 1, dtype=torch.float64)
        other = linear_attention(query * factor, key, value, causal=causal, key_log_scale=scale + 5000.0)
        assert torch.allclose(out, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_a_backward_pass_under_autocast_keeps_float32(causal: bool) -> None:
    leaves = [x.requires_grad_() for x in factors(40, False, torch.float32)[:3]]
    out = linear_attention(*leaves, causal=causal)
    wanted = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad(out.sum(), leaves)
    assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS, ids=ids)
def test_the_kernel_is_its_twin(
    build: Any, errors_to_twin: Any, kernel: dict[str, Any], causal: bool, padded: bool
) -> None:
    form = {"causal_form": FORMS[len(ids(kernel)) % 3]} if causal else {}
    mixer = build({"kernel": {"name": "linear", **kernel, **form}}, causal=causal, num_heads=2, length=11)
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    real = torch.rand(2, 11) < torch.tensor([[0.7], [0.3]]) if padded else None
    forward, backward = errors_to_twin(mixer, x, real)
    assert forward < 1e-9
    assert backward < 1e-8
    if not causal:
        context, keys = torch.randn(2, 6, 8, dtype=torch.float64), torch.rand(2, 6) < 0.6 if padded else None
        forward, backward = errors_to_twin(mixer, x, real, context, keys)
        assert forward < 1e-9
        assert backward < 1e-8


@pytest.mark.parametrize("kernel", KERNELS, ids=ids)
def test_decoding_is_the_parallel_form(build: Any, kernel: dict[str, Any]) -> None:
    mixer = build({"kernel": {"name": "linear", **kernel}}, causal=True, length=40)
    x = torch.randn(2, 40, 8, dtype=torch.float64)
    state, steps = mixer.initial_state(2), []
    sizes = {name: kept.shape for name, kept in state.items()}
    for t in range(40):
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
    assert torch.allclose(torch.stack(steps, 1), mixer(x), rtol=0, atol=1e-9)
    assert {name: kept.shape for name, kept in state.items()} == sizes
    assert all(size[0] == 2 for size in sizes.values())
    assert mixer.capabilities(kernel={"name": "linear", **kernel}).constant_state


@pytest.mark.parametrize("name", MAPS)
def test_recentring_and_scaled_heads_with_every_map(build: Any, errors_to_twin: Any, name: str) -> None:
    options = {
        "kernel": {"name": "linear", "feature_map": name, "normalised": name != "identity"},
        "recenter": {"beta": 0.4, "learnable": True},
        "scaled_heads": {"scales": [1, 3]},
    }
    forward, backward = errors_to_twin(build(options), torch.randn(2, 9, 8, dtype=torch.float64))
    assert forward < 1e-10
    assert backward < 1e-9


@pytest.mark.parametrize("causal", [False, True])
def test_unnormalised_is_the_plain_product(build: Any, causal: bool) -> None:
    kernel = build({"kernel": {"name": "linear", "feature_map": "identity", "normalised": False}}, causal=causal).kernel
    q, k, v = torch.randn(3, 2, 2, 40, 4, dtype=torch.float64)
    product = q @ k.mT
    wanted = (product.tril() if causal else product) @ v
    assert torch.allclose(kernel(q, k, v), wanted, rtol=0, atol=1e-11)
    kernel.length_power = 0.5
    counts = torch.arange(1, 41, dtype=torch.float64)[:, None] if causal else 40.0
    assert torch.allclose(kernel(q, k, v), wanted / counts**0.5, rtol=0, atol=1e-11)


def test_taylor_weighs_by_one_plus_the_cosine(build: Any) -> None:
    kernel = build({"kernel": {"name": "linear", "feature_map": "taylor"}}).kernel
    q, k = torch.randn(2, 2, 2, 9, 4, dtype=torch.float64)
    similarity = 1 + torch.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
    assert torch.allclose(kernel.weights(q, k), similarity / similarity.sum(-1, keepdim=True), rtol=0, atol=1e-12)
    assert torch.allclose(kernel.weights(1e-25 * q, 1e25 * k), kernel.weights(q, k), rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1e-37, 1e-25, 1e-12, 1.0, 120.0, 1e25])
def test_taylor_features_of_any_length(length: float) -> None:
    x = (length * torch.tensor([[3.0, -4.0], [0.0, 0.0]])).requires_grad_()
    features = Taylor(MixerSpec(2, 1, 2))(x)
    direction = [0.0, 0.0] if length == 1e-37 else [0.6, -0.8]
    assert torch.allclose(features, torch.tensor([[1.0, *direction], [1.0, 0.0, 0.0]]), rtol=0, atol=1e-6)
    (slope,) = torch.autograd.grad(features[:, 1].sum(), x)
    # d(x_1 / |x|) / dx is (1 - 0.36, 0.48) / |x| in the direction (0.6, -0.8).
    wanted = torch.tensor([[0.64, 0.48], [0.0, 0.0]]) * (0.0 if length == 1e-37 else 1 / (5 * length))
    assert torch.allclose(slope, wanted, rtol=1e-5, atol=1e-6 * wanted.abs().max().item())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["relu", "taylor"])
def test_a_normaliser_of_exactly_zero_gives_zero(build: Any, name: str, causal: bool) -> None:
    kernel = build({"kernel": {"name": "linear", "feature_map": name}}, causal=causal).kernel
    k = torch.eye(4)[[0, 1, 1, 0, 1]].expand(1, 1, 5, 4).clone().requires_grad_()
    q = (torch.eye(4)[[2, 0, 0, 0, 2]] if name == "relu" else -torch.eye(4)[[0] * 5]).expand(1, 1, 5, 4)
    q, v = q.clone().requires_grad_(), torch.randn(1, 1, 5, 4, requires_grad=True)
    # The first token's similarity with itself is zero: no common feature, or the opposite direction.
    k_seen, v_seen = (k, v) if causal else (k[:, :, :1], v[:, :, :1])
    out = kernel(q, k_seen, v_seen)[:, :, 0]
    assert not out.any()
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("causal", [False, True])
def test_weights_that_cancel_in_the_normaliser_give_zero(causal: bool) -> None:
    key = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]).expand(1, 1, 3, 2).clone().requires_grad_()
    query = torch.tensor([[0.0, 0.0], [2.0, 0.0], [3.0, 0.0]]).expand(1, 1, 3, 2).clone().requires_grad_()
    value = torch.randn(1, 1, 3, 4, requires_grad=True)
    out = linear_attention(query, key, value, causal=causal)
    assert not out.any()
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), (query, key, value)))


class Exponential(FeatureMap):
    """phi(x) = exp(x), of any size."""

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        largest = x.detach().amax(-1, keepdim=True)
        return (x - largest).exp(), largest


@pytest.mark.parametrize("causal", [False, True])
def test_large_features_of_padding_and_of_both_sides(build: Any, causal: bool) -> None:
    kernel = build({"kernel": "linear"}, causal=causal, dtype=torch.float32).kernel
    kernel.feature_map = Exponential(MixerSpec(8, 2, 9))
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    real = torch.arange(9)[None] % 3 > 0
    clean = kernel(q, k, v, real)
    k[:, :, ::3] = 400.0
    assert torch.equal(kernel(q, k, v, real), clean)
    assert torch.allclose(kernel(q + 300, k - 500, v, real), clean, rtol=0, atol=1e-4)
    assert torch.allclose(kernel.weights(q, k, real) @ v, clean, rtol=0, atol=1e-5)


def test_one_map_serves_both_sides_unless_two_are_named(build: Any) -> None:
    shared = build({"kernel": {"name": "linear", "feature_map": "performer"}})
    assert [name for name, _ in shared.kernel.named_buffers() if name.endswith("matrix")] == ["feature_map.matrix"]
    mixed = build({"kernel": {"name": "linear", "feature_map": "relu", "query_feature_map": "elu_plus_one"}}).kernel
    q, k = torch.randn(2, 1, 2, 9, 4, dtype=torch.float64)
    similarity = (torch.nn.functional.elu(q) + 1) @ k.relu().mT
    assert torch.allclose(mixed.weights(q, k), similarity / similarity.sum(-1, keepdim=True), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ({"query_feature_map": "elu"}, ["unknown feature map 'elu'", "elu_plus_one"]),
        ({"query_feature_map": "taylor"}, ["4 features", "query_feature_map 5"]),
        ({"feature_map": {"name": "relu", "scale": 2}}, ["Relu", "no option 'scale'"]),
        ({"feature_map": {"name": "performer", "num_features": 0}}, ["num_features=0"]),
        ({"feature_map": "performer", "query_feature_map": "performer"}, ["leave query_feature_map out"]),
        ({"feature_map": "elu"}, ["Did you mean 'elu_plus_one'?"]),
        ({"key_feature_map": "relu"}, ["Did you mean 'feature_map'?"]),
        ({"length_power": 0.5}, ["length_power has no effect", "normalised=false"]),
        ({"causal_form": "parallel"}, ["'chunked' or 'cumsum' or 'recurrent'", "'parallel'"]),
    ],
)
def test_options_that_do_not_fit_are_named(kernel: dict[str, Any], says: list[str]) -> None:
    found = MultiHeadAttention.problems(MixerSpec(8, 2, 9), kernel={"name": "linear", **kernel})
    assert len(found) == 1
    assert all(words in found[0] for words in says)


def test_there_is_no_map_without_a_normaliser(build: Any) -> None:
    options = {"kernel": {"name": "linear", "feature_map": "identity", "normalised": False}}
    assert not MultiHeadAttention.capabilities(**options).attention_map
    with pytest.raises(NotImplementedError, match="do not sum to one"):
        build(options).attention_map(torch.randn(2, 9, 8, dtype=torch.float64))


noise = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(4))
EXTREMES = {
    "120 of either sign": 120 * noise.sign(),
    "all -120": torch.full((2, 7, 8), -120.0),
    "opposite": 120 * torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0])[:, None].expand(2, 7, 8),
    "identical": noise[:, :1].expand(2, 7, 8),
    "zero": torch.zeros(2, 7, 8),
    "tiny": 1e-20 * noise,
    "denormal": 1e-39 * noise,
}
MASKS = (None, torch.arange(7) == torch.tensor([[4], [0]]), torch.arange(7) < torch.tensor([[5], [0]]))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)
def test_extremes_are_finite_forward_and_backward(build: Any, extreme: Tensor, precision: torch.dtype) -> None:
    for kernel, causal in itertools.product([{"feature_map": "identity"}, *KERNELS], [False, True]):
        mixer = build({"kernel": {"name": "linear", **kernel}}, dtype=torch.float32, causal=causal)
        with torch.no_grad():  # Queries, keys and values are then the input itself.
            mixer.qkv.weight.copy_(torch.eye(8).repeat(3, 1))
            mixer.qkv.bias.zero_()
        for mask in MASKS:
            x = extreme.clone().requires_grad_()
            with torch.autocast("cpu", precision, enabled=precision != torch.float32):
                y = mixer(x, mask)
            gradients = torch.autograd.grad((y.float() * noise).sum(), [x, *mixer.parameters()])
            assert all(tensor.isfinite().all() for tensor in (y, *gradients)), (kernel, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", [*KERNELS[:4], KERNELS[8]], ids=ids)
def test_low_precision_is_near_the_twin(
    build: Any, errors_to_twin: Any, largest_error: Any, kernel: dict[str, Any], causal: bool
) -> None:
    mixer = build({"kernel": {"name": "linear", **kernel}}, dtype=torch.float32, causal=causal, length=37)
    x = torch.randn(2, 37, 8)
    forward, backward = errors_to_twin(mixer, x)
    assert forward < 1e-5
    assert backward < 1e-4
    with torch.no_grad():
        for tensor in (x, *mixer.parameters()):
            tensor.copy_(tensor.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            assert largest_error(mixer(x), naive.forward(mixer, x)) < 3e-2


@pytest.mark.parametrize(("kernel", "causal"), [(KERNELS[1], True), (KERNELS[4], False), (KERNELS[8], True)])
def test_compiles_without_a_graph_break(build: Any, kernel: dict[str, Any], causal: bool) -> None:
    mixer = build({"kernel": {"name": "linear", **kernel}}, causal=causal, dtype=torch.float32, length=40)
    x, real = torch.randn(2, 40, 8, requires_grad=True), torch.arange(40) < torch.tensor([[40], [17]])
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    got, wanted = compiled(x, real), mixer(x, real)
    assert torch.allclose(got, wanted, rtol=0, atol=1e-5)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, wanted)]
    assert torch.allclose(*gradients, rtol=0, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flash_linear_attention_gives_the_same(dtype: torch.dtype, normalised: bool) -> None:
    pytest.importorskip("fla")
    torch.manual_seed(0)
    leaves = [x.cuda().requires_grad_() for x in (*torch.rand(2, 2, 3, 200, 32), torch.randn(2, 3, 200, 32))]
    cotangent, results = torch.randn(2, 3, 200, 32, device="cuda"), []
    for precision in ("high", "highest"):  # Only the first leaves float32 to the Triton kernels.
        torch.set_float32_matmul_precision(precision)
        value = leaves[2].to(dtype) if precision == "high" else leaves[2]
        out = linear_attention(leaves[0], leaves[1], value, causal=True, normalised=normalised)
        results.append((out, *torch.autograd.grad((out * cotangent).sum(), leaves)))
    for got, wanted in zip(*results, strict=True):
        assert (got - wanted).abs().max() < (5e-3 if dtype == torch.float32 else 3e-2) * wanted.abs().max()
