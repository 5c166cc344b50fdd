"""Spectra of attention kernels: a planted decomposition is found again, maps of other attention, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reattend
from reattend.analysis import Spectrum, kernel_spectra
from reattend.attention import Capabilities, Mixer, MixerSpec, MultiHeadAttention
from reattend.attention.primal import Primal
from reattend.backbones import UEAEncoder, build_backbone
from reattend.config import compose, read, to_dict
from reattend.errors import ReattendError
from reattend.runs.load import save_model

LENGTH, RANK = 9, 3
MASK = torch.tensor([[True] * 7 + [False] * 2])


def encoder(mixers: Callable[[MixerSpec], Mixer]) -> UEAEncoder:
    torch.manual_seed(0)
    sizes = {"num_channels": 2, "num_outputs": 2, "max_length": LENGTH, "dim": 8, "depth": 2, "num_heads": 2}
    return UEAEncoder(mixers, ff_dim=8, norm="layer", **sizes).double().eval()  # type: ignore[arg-type]


def primal(**options: Any) -> UEAEncoder:
    return encoder(lambda spec: Primal(spec, rank=RANK, rank_multi=2, **options))


def inputs(batch: int = 1) -> Tensor:
    return torch.randn(batch, LENGTH, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def seen_by(model: nn.Module, mixer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """What `mixer` gets for its input when `model` is called."""
    seen: list[Tensor] = []
    handle = mixer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with torch.no_grad():
        model(x, mask)
    handle.remove()
    return seen[0]


def factors(mixer: Primal, x: Tensor, tokens: list[int], projected: bool) -> tuple[Tensor, Tensor]:
    """f(X) phi_q and f(X) phi_k of those `tokens` of one sample (N, D), head by head from the formulas: (H, n, .)."""
    q, k = mixer.qk(x[tokens]).chunk(2, dim=1)
    pairs = []
    for h in range(2):
        columns = slice(4 * h, 4 * h + 4)
        phi_q, phi_k = (torch.stack([row / row.norm() for row in z[:, columns]]) for z in (q, k))
        count = mixer.weight_e.shape[1]
        rows = x[[tokens[i * (len(tokens) - 1) // (count - 1)] for i in range(count)], columns]
        pairs.append((phi_q @ rows.T, phi_k @ rows.T) if projected else (phi_q, phi_k))
    return torch.stack([f_q for f_q, _ in pairs]), torch.stack([f_k for _, f_k in pairs])


@pytest.mark.parametrize(
    "form", [{}, {"over_tokens": "sum", "multiplier_form": "exponential"}, {"rows": "all", "loss_tokens": "all"}]
)
def test_a_planted_decomposition_is_found_in_every_layer(form: dict[str, Any]) -> None:
    model, x = primal(**form), inputs()
    tokens = list(range(LENGTH if "rows" in form else 7))
    wanted = []
    with torch.no_grad():
        for layer in model.layers:
            mixer = layer.mixer
            f_q, f_k = factors(mixer, seen_by(model, mixer, x, MASK)[0], tokens, projected=True)
            u, sigma, vh = torch.linalg.svd(f_q @ f_k.mT)
            mixer.weight_e.copy_(f_k.mT @ vh.mT[..., :RANK])
            mixer.weight_r.copy_(f_q.mT @ u[..., :RANK])
            inverse = (1 if "over_tokens" in form else len(tokens)) / sigma[:, :RANK]
            mixer.multipliers.copy_(inverse.log() if "over_tokens" in form else -inverse.sqrt())
            wanted.append(sigma)
        losses = model(x, MASK)[1]
    assert losses["ksvd"] < 1e-20 * max(float(sigma.sum()) for sigma in wanted) ** 2
    found = kernel_spectra(model, x, MASK)
    assert [layer.name for layer in found] == ["layers.0.mixer", "layers.1.mixer"]
    for layer, sigma in zip(found, wanted, strict=True):
        assert layer.learned is not None
        torch.testing.assert_close(layer.singular_values[0], sigma[:, :4])
        torch.testing.assert_close(layer.learned[0], sigma[:, :RANK])
    with torch.no_grad():
        model.layers[0].mixer.multipliers.add_(0.5)
    (moved, _) = kernel_spectra(model, x, MASK)
    assert moved.learned is not None
    assert (moved.learned[0] / wanted[0][:, :RANK] - 1).abs().min() > 0.1
    torch.testing.assert_close(moved.singular_values, found[0].singular_values)


def test_the_kernel_of_the_features_alone() -> None:
    model, x = primal(), inputs()
    for layer, found in zip(model.layers, kernel_spectra(model, x, MASK, projected=False), strict=True):
        f_q, f_k = factors(layer.mixer, seen_by(model, layer.mixer, x, MASK)[0], list(range(7)), projected=False)
        torch.testing.assert_close(found.singular_values[0], torch.linalg.svdvals(f_q @ f_k.mT)[:, :4])


def test_of_other_attention_it_is_that_of_the_map() -> None:
    def mixers(spec: MixerSpec) -> Mixer:
        return Primal(spec, rank=RANK) if spec.layer else MultiHeadAttention(spec)

    model, x = encoder(mixers), inputs(2)
    mask = MASK.repeat(2, 1)
    softmax, primal = kernel_spectra(model, x, mask)
    mixer = model.layers[0].mixer
    weights = mixer.attention_map(seen_by(model, mixer, x, mask), mask)
    torch.testing.assert_close(softmax.singular_values[..., :7], torch.linalg.svdvals(weights[:, :, :7, :7]))
    assert not softmax.singular_values[..., 7:].round(decimals=12).any()
    assert softmax.learned is None
    assert primal.learned is not None
    assert primal.learned.shape == (2, 2, RANK)


def test_shares_of_the_largest() -> None:
    values = torch.tensor([[[6.0, 3.0, 1.0], [0.0, 0.0, 0.0]]])
    wanted = torch.tensor([[[0.6, 0.9, 1.0], [0.0, 0.0, 0.0]]])
    torch.testing.assert_close(Spectrum("", values, None).cumulative(), wanted)


def test_of_the_model_that_a_run_left(tmp_path: Path) -> None:
    run = read(compose(["attention=primal_plus", "backbone.options.depth=2"]))
    shape = {"num_channels": 3, "max_length": LENGTH, "num_outputs": 4}
    save_model(tmp_path, "last", {"config": to_dict(run), "shape": shape}, build_backbone(run, shape).state_dict())
    first, last = kernel_spectra(reattend.load(tmp_path), torch.randn(2, LENGTH, 3), MASK.repeat(2, 1))
    assert (first.learned is None, last.learned is None) == (True, False)
    assert last.singular_values.isfinite().all()


class Mean(Mixer):
    """Has neither a kernel nor a map."""

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities()

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()

    def forward(self, x: Tensor, *masks: Any) -> Tensor:
        return x


def test_what_has_no_spectrum_is_named_and_no_hook_is_left() -> None:
    model = encoder(Mean)
    with pytest.raises(ReattendError, match=r"a kernel matrix or an attention map.*: Mean"):
        kernel_spectra(model, inputs())
    with pytest.raises(ReattendError, match=r"call model\.eval\(\) first"):
        kernel_spectra(model.train(), inputs())
    with pytest.raises(ValueError, match="series have 3 steps"):
        kernel_spectra(model.eval(), inputs()[:, :3])
    assert not any(module._forward_hooks for module in model.modules())
