"""The random features of the Performer, FAVOR+."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reattend.attention.contract import MixerSpec
from reattend.attention.slots import FeatureMap
from reattend.seeding import derive


class Performer(FeatureMap):
    """phi(x) = m^(-1/2) exp(w_j . x' - |x'|^2 / 2) for j = 1 to m, with x' = x d^(-1/4).

    Positive orthogonal random features (Choromanski et al. 2020, arXiv 2009.14794, Lemma 1): the mean
    of phi(q) . phi(k) over draws of w is exp(q . k / sqrt(d)), so attention with them estimates softmax attention. The
    rows of w come in blocks of d orthogonal ones, each as long as a normal vector of its own. With `kind=relu` it is
    phi(x) = m^(-1/2) relu(w_j . x'), the generalised attention of the same paper, which estimates no softmax.

    No epsilon is added: exponentials are taken relative to the token's largest, and a query without any positive
    feature in common with a key gets zero. All heads of a layer share w. It is a pure function of `seed`, drawn when
    the map is built, and of step // redraw_interval, so that an interrupted run continues with the same matrices.

    Args:
        spec: the place it is built for.
        num_features: m; None for floor(d ln d), at least 1.
        redraw_interval: training steps after which w is drawn anew; None keeps the first draw.
        kind: which kernel is estimated.
    """

    random = True

    seed: Tensor
    matrix: Tensor

    def __init__(
        self,
        spec: MixerSpec,
        *,
        num_features: int | None = None,
        redraw_interval: int | None = 1000,
        kind: Literal["softmax", "relu"] = "softmax",
    ) -> None:
        super().__init__(spec)
        head_dim = spec.dim // spec.num_heads
        if num_features is None:
            num_features = max(1, math.floor(head_dim * math.log(head_dim)))
        self.redraw_interval = redraw_interval
        self.kind = kind
        self.register_buffer("seed", torch.randint(2**62, ()))
        self.register_buffer("matrix", torch.empty(num_features, head_dim))
        self._drawn: int | None = None
        self.register_load_state_dict_post_hook(_forget_draw)
        self.start_step(0)

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        return [
            f"{name}={options[name]} must be at least 1"
            for name in ("num_features", "redraw_interval")
            if options.get(name) is not None and options[name] < 1
        ]

    def start_step(self, step: int) -> None:
        """Draws the matrix of training step `step`, unless it is the one at hand."""
        if self.matrix.is_meta:
            return  # only shapes are asked for
        draw = 0 if self.redraw_interval is None else step // self.redraw_interval
        if draw != self._drawn:
            with torch.no_grad():
                self.matrix.copy_(orthogonal_normal(*self.matrix.shape, seed=derive(int(self.seed), "performer", draw)))
            self._drawn = draw

    def num_features(self, head_dim: int) -> int:
        return self.matrix.shape[0]

    def flops(self, num_tokens: int, head_dim: int) -> int:
        return 2 * num_tokens * head_dim * self.matrix.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        features, log_scale = self.scaled(x)
        return features if log_scale is None else features * log_scale.exp()

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        num_features, head_dim = self.matrix.shape
        matrix = self.matrix.to(x.dtype).mT * head_dim**-0.25
        if self.kind == "relu":
            return (x @ matrix).relu() * num_features**-0.5, None
        features, largest = _Exponentials.apply(x, matrix, head_dim**-0.5)
        return features, largest - 0.5 * math.log(num_features)


class _Exponentials(torch.autograd.Function):
    """exp(l - max l) and max l for the logits l = x matrix - scale |x|^2 / 2, in two passes over l, with max l held."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        logits = x @ matrix
        largest = logits.amax(-1, keepdim=True)
        features = logits.sub_(largest).exp_()
        largest = largest - x.square().sum(-1, keepdim=True) * (scale / 2)
        ctx.save_for_backward(x, matrix, features)
        ctx.scale = scale
        ctx.mark_non_differentiable(largest)
        return features, largest

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        x, matrix, features = ctx.saved_tensors
        grad = grad * features
        return (grad @ matrix.mT).addcmul_(x, grad.sum(-1, keepdim=True), value=-ctx.scale), None, None


def _forget_draw(module: nn.Module, incompatible_keys: Any) -> None:
    # What was loaded may be a matrix of another step, or of another seed.
    assert isinstance(module, Performer)
    module._drawn = None


def orthogonal_normal(rows: int, columns: int, *, seed: int) -> Tensor:
    """(rows, columns) in float64: blocks of orthogonal rows, each row by itself a standard normal vector."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-rows // columns)
    normal = torch.randn(blocks, columns, columns, dtype=torch.float64, generator=generator)
    orthogonal, triangle = torch.linalg.qr(normal)
    # The signs make the orthogonal matrix uniformly distributed, whatever the QR algorithm's convention.
    orthogonal = orthogonal * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(rows, columns, dtype=torch.float64, generator=generator).norm(dim=1, keepdim=True)
    matrix: Tensor = orthogonal.mT.flatten(0, 1)[:rows] * lengths
    return matrix
