"""Singular values of the kernels that attention layers have learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reattend.attention import Mixer
from reattend.attention.primal import Primal
from reattend.errors import ReattendError


@dataclass(frozen=True)
class Spectrum:
    """Singular values of each head's kernel matrix in one layer, for each sample.

    Attributes:
        name: of the layer's mixer in the model, "layers.1.mixer".
        singular_values: of the matrix, largest first, (B, H, K); those that are left out are zero.
        learned: what the layer's multipliers L say that the largest are, largest first, (B, H, s): the diagonal of
            Sigma = L^-1. None for attention other than Primal-Attention.
    """

    name: str
    singular_values: Tensor
    learned: Tensor | None

    def cumulative(self) -> Tensor:
        """Share of the largest k + 1 in the sum of all, sum_{i<=k} sigma_i / sum_i sigma_i, (B, H, K); 0 if all are 0.

        The curve of Primal-Attention's Fig. 1.
        """
        total = self.singular_values.sum(-1, keepdim=True)
        return self.singular_values.cumsum(-1) / torch.where(total > 0, total, 1.0)


@torch.no_grad()
def kernel_spectra(
    model: nn.Module, x: Tensor, padding_mask: Tensor | None = None, *, projected: bool = True
) -> list[Spectrum]:
    """Spectra of the attention kernels of `model`, layer by layer, on given samples.

    Primal-Attention seeks the singular value decomposition of K_ij = f(X) phi_q(x_i) . f(X) phi_k(x_j), that is
    K H_r = H_e Sigma and K^T H_e = H_r Sigma with Sigma = L^-1 (Chen et al. 2023, arXiv 2305.19798): where its
    objective is stationary, `learned` are the largest of `singular_values`. K is of the tokens that its loss is over.
    Of attention with a map A, K = A: its rows are of real tokens, columns of padding are zero.

        model = reattend.load("outputs/runs/...")
        for layer in kernel_spectra(model, x, padding_mask):
            print(layer.name, layer.singular_values.mean(0), layer.learned)

    Args:
        model: in evaluation mode, called as `model(x, padding_mask)`. A layer that is called twice is there twice.
        x: what the model takes, a batch of B samples.
        padding_mask: (B, N), True at real tokens; None if all are real.
        projected: with f(X); False for phi_q(x_i) . phi_k(x_j) alone, which `learned` does not belong to.

    Returns:
        One for each layer that has a kernel matrix, in the order of the layers.

    Raises:
        ReattendError: no layer has one, or the model is in training mode, where dropout and batch statistics count.
    """
    if model.training:
        raise ReattendError("spectra are of a model in evaluation mode: call model.eval() first")
    spectra: list[Spectrum] = []

    def note(name: str) -> Callable[..., None]:
        def hook(mixer: Mixer, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
            found = _spectrum(name, mixer, projected, *inputs, **keywords)
            spectra.extend([found] if found else [])

        return hook

    mixers = [(name, module) for name, module in model.named_modules() if isinstance(module, Mixer)]
    handles = [mixer.register_forward_hook(note(name), with_kwargs=True) for name, mixer in mixers]
    try:
        model(x, padding_mask)
    finally:
        for handle in handles:
            handle.remove()
    if not spectra:
        kinds = ", ".join(sorted({type(mixer).__name__ for _, mixer in mixers}))
        raise ReattendError(
            f"no layer of the model has a kernel matrix or an attention map, of the attention in it: {kinds}"
        )
    return spectra


def _spectrum(
    name: str,
    mixer: Mixer,
    projected: bool,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Spectrum | None:
    """The spectrum of `mixer` where it is called so; None if it has no matrix, or attends to another sequence."""
    if isinstance(mixer, Primal):
        values = mixer.singular_values(x, padding_mask, projected=projected)
        return Spectrum(name, values, mixer.learned_singular_values(x, padding_mask))
    if context is not None:
        return None
    try:
        weights = mixer.attention_map(x, padding_mask)
    except NotImplementedError:
        return None
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if padding_mask is not None:
        weights = weights.masked_fill(~padding_mask[:, None, :, None], 0.0)
    return Spectrum(name, torch.linalg.svdvals(weights), None)
