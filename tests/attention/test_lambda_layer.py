"""The lambda layer: the twin in training and evaluation, grids, batch normalisation, Table 7's counts, extremes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reattend.attention import MixerSpec, naive
from reattend.attention.lambda_layer import LambdaLayer
from reattend.attention.ops import relative_sums
from reattend.attention.ops.masked_batch_norm import MaskedBatchNorm
from reattend.errors import ReattendError


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a grid and sequences in several blocks."""
    monkeypatch.setattr(relative_sums, "BLOCK", 3)


def build(
    length: int = 9,
    dtype: torch.dtype = torch.float64,
    grid: tuple[int, ...] | None = None,
    prefix: int = 0,
    **options: Any,
) -> LambdaLayer:
    torch.manual_seed(0)
    spec = MixerSpec(8, 2, length, grid=grid, prefix_tokens=prefix)
    mixer = LambdaLayer(spec, **{"key_dim": 3, **options}).to(dtype)
    with torch.no_grad():
        for value in (*mixer.parameters(), *mixer.buffers()):
            if value.is_floating_point():
                value += 0.3 * torch.rand_like(value)
    return mixer


def padding(length: int) -> Tensor:
    """Padding anywhere, one real token, and none."""
    mask = torch.rand(4, length, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[2:] = False
    mask[2, length // 2] = True
    return mask


PLACES = [(7, None, 0), (9, None, 2), (6, (2, 3), 0), (9, (4, 2), 1), (8, (2, 2, 2), 0), (5, (5,), 0)]


@pytest.mark.parametrize(("length", "grid", "prefix"), PLACES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("normalised", ["query_value", "query_key"])
def test_outputs_and_gradients_are_the_twins(
    largest_error: Any,
    small_blocks: None,
    length: int,
    grid: tuple[int, ...] | None,
    prefix: int,
    padded: bool,
    training: bool,
    normalised: str,
) -> None:
    mixer = build(length, grid=grid, prefix=prefix, normalised=normalised).train(training)
    x = torch.randn(4, length, 8, dtype=torch.float64, requires_grad=True)
    mask = padding(length) if padded else None
    leaves = [x, *mixer.parameters()]
    twin = naive.forward(mixer, x, mask)  # First, for training moves the running statistics.
    y = mixer(x, mask)
    cotangent = torch.randn_like(twin)
    got = torch.autograd.grad((y * cotangent).sum(), leaves)
    wanted = torch.autograd.grad((twin * cotangent).sum(), leaves)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    assert largest_error(y, twin) < 1e-11
    assert max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True)) < 1e-10


@pytest.mark.parametrize("grid", [None, (10, 15)])
def test_float32_is_near_the_lambdas_written_out(largest_error: Any, grid: tuple[int, int] | None) -> None:
    mixer = build(150, torch.float32, grid=grid).eval()
    extents = grid or (150,)
    q, v = torch.randn(2, 2, 150, 3), torch.randn(2, 150, 4)
    places = torch.cartesian_prod(*map(torch.arange, extents)).view(150, -1)
    apart = places[None] - places[:, None] + torch.tensor(extents) - 1
    embeddings = mixer.table.detach()[tuple(apart.unbind(-1))]
    wanted = torch.einsum("bhnk,nmk,bmd->bhnd", q, embeddings, v)
    assert largest_error(relative_sums.relative_sums(q, mixer.table, v, extents), wanted) < 5e-6


@pytest.mark.parametrize(("grid", "length"), [((4, 6), 6), (None, 5)])
def test_fewer_tokens_use_the_middle_of_the_table(largest_error: Any, grid: Any, length: int) -> None:
    mixer = build(24, grid=grid).eval()
    x = torch.randn(2, length, 8, dtype=torch.float64)
    assert largest_error(mixer(x), naive.forward(mixer, x)) < 1e-11
    with pytest.raises(ValueError, match="relative positions are learned for"):
        mixer(torch.randn(2, 96, 8).double())


def test_padding_changes_nothing_in_training_either() -> None:
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    padded = torch.cat([x, 100 * torch.randn(2, 3, 8, dtype=torch.float64)], dim=1)
    real = torch.arange(9).expand(2, -1) < 6
    for training in (False, True):
        plain, masked = build().train(training), build().train(training)
        assert torch.allclose(masked(padded, real)[:, :6], plain(x), atol=1e-12)
        for name, value in plain.named_buffers():
            assert torch.allclose(masked.get_buffer(name), value, atol=1e-12), name


def test_batch_normalisation_is_torchs() -> None:
    x, real = torch.randn(3, 5, 4, dtype=torch.float64), padding(5)[:3]
    ours, theirs = MaskedBatchNorm(4).double(), nn.BatchNorm1d(4).double()
    for _ in range(2):
        assert torch.allclose(ours(x, real)[real], theirs(x[real]), atol=1e-12)
    for name, value in theirs.named_buffers():
        assert torch.allclose(ours.get_buffer(name), value, atol=1e-12), name
    before = {name: value.clone() for name, value in ours.named_buffers()}
    assert ours(x, torch.zeros_like(real)).isfinite().all()
    assert torch.equal(ours.running_var, before["running_var"])
    assert ours(x[:1, :1]).abs().max() < 1e-6  # One token, which torch refuses.
    ours.eval()
    assert torch.equal(ours(x, real), ours(x))


def test_without_positions_it_is_one_lambda_for_all_queries() -> None:
    mixer = build().eval()
    with torch.no_grad():
        mixer.table.zero_()
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    order = torch.randperm(9)
    assert torch.allclose(mixer(x)[:, order], mixer(x[:, order]), atol=1e-12)


def test_parameters_of_afts_table_7() -> None:
    """Lambda tiny and small: 4.783 and 17.607 million as recomputed, 4.8 and 17.7 as printed."""
    timm = pytest.importorskip("timm")
    for name, dim, heads, millions, printed in (
        ("deit_tiny_patch16_224", 192, 3, 4.782952, 4.8),
        ("deit_small_patch16_224", 384, 6, 17.607208, 17.7),
    ):
        with torch.device("meta"):
            model = timm.create_model(name, class_token=False, global_pool="avg", pos_embed="none")
            for block in model.blocks:
                block.attn = LambdaLayer(MixerSpec(dim, heads, 196, grid=(14, 14)))
        counted = sum(p.numel() for p in model.parameters())
        assert counted == round(1e6 * millions)
        assert abs(counted / 1e6 - printed) < 0.1


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_extreme_inputs_stay_finite(autocast: bool, training: bool) -> None:
    mixer = build(9, torch.float32, grid=(3, 3)).train(training)
    x = torch.randn(4, 9, 8)
    x[0] *= 120 / x[0].abs().max()
    x[1] = x[1, :1]
    real = torch.ones(4, 9, dtype=torch.bool)
    real[2, 1:] = False
    real[3] = False
    for tokens, mask in ((x, real), (x[1:2], None), (x[2:3], real[2:3]), (x[3:], real[3:])):
        tokens = tokens.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            y = mixer(tokens, mask)
        gradients = torch.autograd.grad(y.float().square().sum(), [tokens, *mixer.parameters()])
        assert all(t.isfinite().all() for t in (y, *gradients))
        assert mask is None or not y[~mask.any(1)].any()


@pytest.mark.parametrize("extents", [(5,), (2, 3), (2, 1, 2)])
def test_gradcheck_of_the_sums(small_blocks: None, extents: tuple[int, ...]) -> None:
    count = torch.Size(extents).numel()
    shapes = (2, 2, count, 2), (*(2 * n - 1 for n in extents), 2), (2, count, 3)
    inputs = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(lambda *t: relative_sums.relative_sums(*t, extents), inputs)


def test_it_is_not_causal_and_says_why() -> None:
    with pytest.raises(ReattendError, match="batch normalisation in training averages over tokens of the future"):
        LambdaLayer(MixerSpec(8, 2, 9, causal=True))
    with pytest.raises(ReattendError, match="key_dim=0 must be at least 1"):
        build(key_dim=0)
    with pytest.raises(ValueError, match="takes no context"):
        build()(torch.randn(1, 9, 8).double(), None, torch.randn(1, 9, 8).double())
