"""Primal-Attention: the scores of a kernel singular value decomposition in place of attention weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from reattend.attention.contract import (
    SQUARED_MEAN,
    Capabilities,
    Losses,
    Mixer,
    MixerSpec,
    State,
    check_decodes,
    check_mask,
)
from reattend.attention.ops.cosine_scores import cosine_scores
from reattend.attention.ops.even_rows import even_rows
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.unit import unit

LOSS = "ksvd"


class Primal(Mixer):
    """Primal-Attention (Chen et al. 2023, arXiv 2305.19798, Eqn 6 and 8).

    Attention is read as an asymmetric kernel K_ij = phi_q(x_i) . phi_k(x_j) with phi(z) = z / |z| of queries and keys.
    No weights between tokens are formed: each head learns W_e and W_r, whose scores

        e_t = W_eX^T phi_q(x_t),   r_t = W_rX^T phi_k(x_t),   W_eX = X'^T W_e,   W_rX = X'^T W_r

    are projections to the left and right singular vectors of K where the objective

        J = 1/2 sum_t e_t^T L e_t + 1/2 sum_t r_t^T L r_t - tr(W_e^T W_r),   L diagonal and positive

    is stationary, and there J = 0. So J^2 is returned as the loss "ksvd", J the mean over heads. X' (n, d) are n rows
    of the head's channels of x, evenly spaced over the real tokens; with fewer tokens than n rows repeat. Without data
    dependence W_eX and W_rX are parameters. The output is proj(concat([e; r])), `concat` one layer for all heads;
    there are no values. Time and memory are linear in length.

    The causal form sees the token's past by prefix means alone: phi_q and phi_k are of the means of queries and of keys
    up to the token, and W_eX is a parameter. A rank above the head's width makes no more singular vectors: K has at
    most that rank.

    Defaults are the objective of the authors' code, where A_e and A_r are means over tokens and L = lambda^2, but of
    real tokens only. With `over_tokens="sum"` and `multiplier_form="exponential"` it is the paper's. Beside "ksvd" the
    parts of J are returned as measurements: "ksvd/A_e/<layer>", A_r, T (the trace), J and L (its mean).

    Parameters are `qk`, `concat`, `proj`, `weight_e` and `weight_r` (H, n, s), or (H, d, s) without data dependence,
    and `multipliers` (H, s).

    Args:
        spec: the place it is built for.
        rank: s, number of scores per head and side.
        rank_multi: n is rank * rank_multi, at most `spec.max_length`; without data dependence there is no n.
        data_dependent: whether W_eX depends on the input; None for yes, unless causal.
        r_scores: whether the output has r beside e. Without, keys and W_r are in the loss only.
        rows: what X' is sampled from and, when causal, prefix means are of; `all` includes padding, as in the code.
        loss_tokens: tokens that J is over; `all` includes padding, as in the code.
        over_tokens: whether A_e and A_r are means over tokens, as in the code, or sums, as in the paper. Sums start
            with L / max_length for L, so that J starts where it does with means.
        multiplier_form: L is lambda^2 (the code: lambda starts uniform in [0, 1)) or exp(lambda) (L starts so). Both
            keep L positive, as the paper demands.
        square: J^2 of each `sample`, or of the mean of J over the `batch`: then J itself is returned, as
            "ksvd^2", and the task averages over the whole batch before it squares.
        bias: whether the linear layers have biases.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        rank: int = 30,
        rank_multi: int = 10,
        data_dependent: bool | None = None,
        r_scores: bool = True,
        rows: Literal["real", "all"] = "real",
        loss_tokens: Literal["real", "all"] = "real",
        over_tokens: Literal["mean", "sum"] = "mean",
        multiplier_form: Literal["square", "exponential"] = "square",
        square: Literal["sample", "batch"] = "sample",
        bias: bool = True,
    ) -> None:
        super().__init__()
        given = {name: value for name, value in locals().items() if name not in ("self", "spec", "__class__")}
        self.refuse_problems(spec, **given)
        self.spec = spec
        self.rank = rank
        self.head_dim = spec.dim // spec.num_heads
        self.data_dependent = not spec.causal if data_dependent is None else data_dependent
        self.r_scores = r_scores
        self.rows = rows
        self.loss_tokens = loss_tokens
        self.over_tokens = over_tokens
        self.multiplier_form = multiplier_form
        self.square = square
        self.qk = nn.Linear(spec.dim, 2 * spec.dim, bias=bias)
        basis = min(rank * rank_multi, spec.max_length) if self.data_dependent else self.head_dim
        self.weight_e = nn.Parameter(torch.empty(spec.num_heads, basis, rank))
        self.weight_r = nn.Parameter(torch.empty(spec.num_heads, basis, rank))
        start = torch.rand(spec.num_heads, rank)
        scale = 1 / spec.max_length if over_tokens == "sum" else 1.0
        start = start * scale**0.5 if multiplier_form == "square" else ((1 - start) * scale).log()
        self.multipliers = nn.Parameter(start)
        self.concat = nn.Linear((2 if r_scores else 1) * rank, self.head_dim, bias=bias)
        self.proj = nn.Linear(spec.dim, spec.dim, bias=bias)
        # Of the three dimensions the last two are one vector to torch: heads are orthogonal, each of norm 1.
        nn.init.orthogonal_(self.weight_e)
        nn.init.orthogonal_(self.weight_r)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        mixes = options.get("data_dependent")
        reasons = {
            "context": "both scores of a token are of its own query and key: it attends to no other sequence",
            "attention_map": "no weights between tokens are formed; singular_values gives the kernel's spectrum",
            "losses": f"its objective is the loss {LOSS}",
        }
        if mixes:
            reasons["causal"] = "the rows of X' are from the whole sequence: set data_dependent=false"
            reasons["decoding"] = reasons["causal"]
        if mixes is False:
            reasons["token_mixing"] = "without data dependence only the causal form's prefix means mix tokens"
        seen = [name for name in ("rows", "loss_tokens") if options.get(name) == "all"]
        if seen:
            reasons["padding_mask"] = f"padding counts as in the authors' code ({'=all, '.join(seen)}=all)"
            reasons["padding_on_purpose"] = reasons["padding_mask"]
        if options.get("square") == "batch":
            reasons["accumulation"] = "its loss squares a mean over the whole batch (square=batch)"
        return Capabilities(
            causal=not mixes,
            decoding=not mixes,
            constant_state=not mixes,
            padding_mask=not seen,
            time_exponent=1.0,
            reasons=reasons,
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = [f"{name}={options[name]} must be at least 1" for name in _COUNTS if options.get(name, 1) < 1]
        return super().problems(spec, **options) + found

    def extra_repr(self) -> str:
        """Rank and basis, with a note where the rank is no constraint."""
        note = f", above the head's width {self.head_dim}: no constraint" if self.rank > self.head_dim else ""
        return f"rank={self.rank}{note}, basis={self.weight_e.shape[1]}, data_dependent={self.data_dependent}"

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> tuple[Tensor, Losses]:
        """Mixes `x` (B, N, D), and gives the loss and its parts; both are zero for a sample without a real token.

        Raises:
            ValueError: for a mask that is not bool, or a context.
        """
        if context is not None or context_mask is not None:
            raise ValueError("Primal-Attention takes no context: both scores are of the token itself")
        check_mask(padding_mask)
        qk = self._queries_keys(x, padding_mask)
        with without_autocast(x):
            mask = padding_mask if self.loss_tokens == "real" else None
            scores, energy = cosine_scores(qk, self._weights(x, padding_mask), mask)
            losses = self._losses(energy, x.shape[1], mask)
        y = self._output(scores)
        if padding_mask is None:
            return y, losses
        real = padding_mask.any(1)
        losses = {name: loss.masked_fill(~real, 0.0) for name, loss in losses.items()}
        return y.masked_fill(~real[:, None, None], 0.0), losses

    def _queries_keys(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Queries and keys, or the directions of their prefix means, (B, N, 2 H, d) in float32 or float64."""
        qk = _wide(self.qk(x))
        if self.spec.causal:
            if padding_mask is not None and self.rows == "real":
                qk = qk.masked_fill(~padding_mask[:, :, None], 0.0)
            qk = qk.cumsum(1)  # The mean differs by a factor, which phi divides out.
        heads: Tensor = qk.unflatten(2, (2 * self.spec.num_heads, -1))
        return heads

    def _weights(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """W_eX and then W_rX of the heads, (B, 2 H, d, s) or (1, 2 H, d, s)."""
        if not self.data_dependent:
            return _wide(torch.cat([self.weight_e, self.weight_r]))[None]
        both: Tensor = self._sampled(x, padding_mask).mT @ _wide(torch.cat([self.weight_e, self.weight_r], 2))
        return torch.cat(both.chunk(2, dim=3), 1)

    def _sampled(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """X' of each head, (B, H, n, d)."""
        mask = padding_mask if self.rows == "real" else None
        rows = _wide(even_rows(x, mask, self.weight_e.shape[1]).to(self.weight_e.dtype))
        heads: Tensor = rows.unflatten(2, (self.spec.num_heads, -1))
        return heads.transpose(1, 2)

    def _losses(self, energy: Tensor, length: int, mask: Tensor | None) -> Losses:
        """The loss and measurements from sums of squared scores over tokens, (B, 2 H, s)."""
        multipliers = _wide(self._lambda())
        a_e, a_r = (0.5 * (part * multipliers).sum(2).mean(1) for part in energy.chunk(2, dim=1))
        if self.over_tokens == "mean":
            count = length if mask is None else mask.sum(1).clamp(min=1)
            a_e, a_r = a_e / count, a_r / count
        trace = (_wide(self.weight_e) * _wide(self.weight_r)).sum((1, 2)).mean().expand_as(a_e)
        objective = a_e + a_r - trace
        parts = {"A_e": a_e, "A_r": a_r, "T": trace, "J": objective, "L": multipliers.mean().expand_as(a_e)}
        losses = {LOSS: objective.square()} if self.square == "sample" else {LOSS + SQUARED_MEAN: objective}
        return losses | {f"{LOSS}/{name}/{self.spec.layer}": part for name, part in parts.items()}

    def _lambda(self) -> Tensor:
        """The diagonal of L, (H, s)."""
        return self.multipliers.square() if self.multiplier_form == "square" else self.multipliers.exp()

    def _output(self, scores: Tensor) -> Tensor:
        """proj(concat([e; r])) of scores (B, 2 H, N, s): (B, N, D)."""
        e, r = scores.chunk(2, dim=1)
        scores = (torch.cat([e, r], 3) if self.r_scores else e).to(self.concat.weight.dtype)
        y: Tensor = self.proj(self.concat(scores).transpose(1, 2).flatten(2))
        return y

    def initial_state(self, batch_size: int) -> State:
        """Sums of queries and keys, (B, 2 D)."""
        weight = self.qk.weight
        return {"sums": _wide(weight.new_zeros(batch_size, len(weight)))}

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        check_decodes(self.spec)
        sums = state["sums"] + self.qk(x_t).to(state["sums"].dtype)
        with without_autocast(x_t):
            qk = sums[:, None].unflatten(2, (2 * self.spec.num_heads, -1))
            scores, _ = cosine_scores(qk, self._weights(x_t[:, None], None), None)
        return self._output(scores).squeeze(1), {"sums": sums}

    def singular_values(self, x: Tensor, padding_mask: Tensor | None = None, *, projected: bool = False) -> Tensor:
        """Singular values of each head's kernel matrix, largest first, (B, H, min(N, d)); all others are zero.

        The matrix is of the tokens that the loss is over: the real ones, or all with `loss_tokens="all"`.

        Args:
            x: (B, N, D).
            padding_mask: (B, N), True at real tokens.
            projected: of f(X) phi_q(x_i) . f(X) phi_k(x_j) with f(X) = X', whose vectors the objective finds, instead
                of phi_q(x_i) . phi_k(x_j). Without data dependence they are the same.
        """
        heads = self._queries_keys(x, padding_mask)
        with without_autocast(x):
            heads = unit(heads).transpose(1, 2)
            if padding_mask is not None and self.loss_tokens == "real":
                heads = heads.masked_fill(~padding_mask[:, None, :, None], 0.0)
            # Q_q R_q (Q_k R_k)^T has the singular values of the small matrix between Q_q and Q_k^T.
            of_q, of_k = torch.linalg.qr(heads, mode="r").R.chunk(2, dim=1)
            if projected and self.data_dependent:
                rows = self._sampled(x, padding_mask)
                of_q = of_q @ (rows.mT @ rows)
            values: Tensor = torch.linalg.svdvals(of_q @ of_k.mT)
            return values

    def learned_singular_values(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """What L says that the largest singular values of the projected kernel matrix are, largest first, (B, H, s).

        They are L^-1, or c L^-1 where A_e and A_r are means over c tokens. The matrix has them where the objective is
        stationary in W_e and W_r; elsewhere they are no more than a parameter.

        Args:
            x: (B, N, D).
            padding_mask: (B, N), True at real tokens.
        """
        counts = x.new_full((len(x),), x.shape[1])
        if padding_mask is not None and self.loss_tokens == "real":
            counts = padding_mask.sum(1)
        values = 1 / self._lambda().sort(dim=-1).values
        return values * counts[:, None, None] if self.over_tokens == "mean" else values.expand(len(x), -1, -1)

    def flops(self, length: int) -> int:
        """Linear layers, X'^T W of both sides and scores, 2 per multiply-add."""
        dim, rank, basis = self.spec.dim, self.rank, self.weight_e.shape[1]
        sampled = 4 * basis * dim * rank if self.data_dependent else 0
        concat = 2 * length * self.spec.num_heads * self.concat.weight.numel()
        return sampled + 6 * length * dim**2 + 4 * length * dim * rank + concat


_COUNTS = ("rank", "rank_multi")


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32, all else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
