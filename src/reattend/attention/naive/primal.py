"""Primal-Attention, sample by sample, head by head and token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.primal import Primal


def forward(
    mixer: Primal,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """proj(concat([e; r])) with e = W_eX^T q / |q|, r = W_rX^T k / |k|, and the objective (arXiv 2305.19798, Eqn 6, 8).

    In float64 from the mixer's own parameters. A sample without a real token gets zero.

    Args:
        mixer: the module.
        x: (B, N, D).
        padding_mask: (B, N), True at real tokens.
        context: None.
        context_mask: None.

    Returns:
        (B, N, D) in float64; and for each sample the loss and its parts, (B,).
    """
    rows = []
    losses: list[dict[str, Tensor]] = []
    for b, tokens in enumerate(x.double()):
        real = [True] * len(tokens) if padding_mask is None else padding_mask[b].tolist()
        y, parts = _sample(mixer, tokens, [t for t in range(len(tokens)) if real[t]])
        rows.append(y if any(real) else torch.zeros_like(y))
        losses.append(parts if any(real) else {name: torch.zeros_like(part) for name, part in parts.items()})
    return torch.stack(rows), {name: torch.stack([parts[name] for parts in losses]) for name in losses[0]}


def _sample(mixer: Primal, x: Tensor, real: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Output (N, D) and losses of one sample whose real tokens are at `real`."""
    everything = list(range(len(x)))
    seen = everything if mixer.rows == "all" else real
    counted = everything if mixer.loss_tokens == "all" else real
    num_heads, width = mixer.spec.num_heads, mixer.spec.dim
    head_dim = width // num_heads
    weight = mixer.qk.weight.double()
    bias = torch.zeros(2 * width, dtype=torch.float64) if mixer.qk.bias is None else mixer.qk.bias.double()
    queries, keys = x @ weight[:width].T + bias[:width], x @ weight[width:].T + bias[width:]
    if mixer.spec.causal:
        queries, keys = _prefix_means(queries, seen), _prefix_means(keys, seen)
    heads = []
    a_e: list[Tensor] = []
    a_r: list[Tensor] = []
    trace, all_multipliers = [], []
    for h in range(num_heads):
        columns = slice(h * head_dim, (h + 1) * head_dim)
        w_e, w_r = mixer.weight_e[h].double(), mixer.weight_r[h].double()
        trace.append((w_e.T @ w_r).trace())
        if mixer.data_dependent:
            basis = _evenly_spaced(x[:, columns], seen, len(w_e))
            w_e, w_r = basis.T @ w_e, basis.T @ w_r
        e = torch.stack([w_e.T @ _unit(q) for q in queries[:, columns]])
        r = torch.stack([w_r.T @ _unit(k) for k in keys[:, columns]])
        parameter = mixer.multipliers[h].double()
        multipliers = parameter * parameter if mixer.multiplier_form == "square" else torch.exp(parameter)
        all_multipliers.append(multipliers.mean())
        lam = torch.diag(multipliers)
        divisor = len(counted) if mixer.over_tokens == "mean" else 1
        for scores, terms in ((e, a_e), (r, a_r)):
            total = sum((scores[t] @ lam @ scores[t] for t in counted), start=torch.zeros_like(scores[0, 0]))
            terms.append(total / 2 / max(divisor, 1))
        scores = torch.cat([e, r], 1) if mixer.r_scores else e
        heads.append(_linear(mixer.concat, scores))
    parts = {"A_e": a_e, "A_r": a_r, "T": trace, "L": all_multipliers}
    means = {name: sum(values, start=torch.zeros_like(values[0])) / num_heads for name, values in parts.items()}
    means["J"] = means["A_e"] + means["A_r"] - means["T"]
    losses = {f"ksvd/{name}/{mixer.spec.layer}": value for name, value in means.items()}
    losses |= {"ksvd": means["J"] ** 2} if mixer.square == "sample" else {"ksvd^2": means["J"]}
    return _linear(mixer.proj, torch.cat(heads, 1)), losses


def _linear(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    y = x @ layer.weight.double().T
    return y if layer.bias is None else y + layer.bias.double()


def _unit(z: Tensor) -> Tensor:
    return z / z.norm() if z.any() else torch.zeros_like(z)


def _prefix_means(z: Tensor, seen: list[int]) -> Tensor:
    """For each row of (N, D) the mean of those in `seen` up to it, zero where there is none."""
    means = []
    for t in range(len(z)):
        past = [z[u] for u in seen if u <= t]
        means.append(torch.stack(past).mean(0) if past else torch.zeros_like(z[0]))
    return torch.stack(means)


def _evenly_spaced(x: Tensor, seen: list[int], count: int) -> Tensor:
    """`count` rows of (N, d) at even places of `seen`, rounded down; repeated where there are fewer."""
    if not seen:
        return x[:1].expand(count, -1)
    return torch.stack([x[seen[(i * (len(seen) - 1)) // max(count - 1, 1)]] for i in range(count)])
