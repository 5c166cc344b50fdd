"""Flow-Attention of one head of one sample."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.kernels.flowformer import FlowformerKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: FlowformerKernel, tokens: Tokens) -> Tensor:
    """Conservation of the flow, competition and allocation for q (N, D), k and v (M, D), M real keys.

    Wu et al. 2022; the causal form is that of the authors' code.
    """
    q, k = torch.sigmoid(q), torch.sigmoid(k)
    real = torch.tensor(tokens.queries)
    return _causal(q, k, v, real, tokens) if kernel.causal else _over_all(q, k, v, real)


def _over_all(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
    num_queries, num_keys = int(real.sum()), len(k)
    incoming = q @ k.sum(0)
    conserved_outgoing = k @ (q[real] / incoming[real, None]).sum(0)
    if num_queries:
        outgoing = k @ q[real].sum(0)
        conserved_incoming = q @ (k / outgoing[:, None]).sum(0)
    else:
        conserved_incoming = torch.zeros_like(incoming)
    competition = num_keys * conserved_outgoing.softmax(0)
    allocation = torch.sigmoid(conserved_incoming * num_queries / num_keys)
    return allocation[:, None] * (q / incoming[:, None]) @ (k.T @ (competition[:, None] * v))


def _causal(q: Tensor, k: Tensor, v: Tensor, real: Tensor, tokens: Tokens) -> Tensor:
    key_of = {span[0]: j for j, span in enumerate(tokens.keys)}
    outputs, sources, competitors = [], [], []
    query_sum, key_sum, per_outgoing, per_incoming = (torch.zeros_like(q[0]) for _ in range(4))
    pairs, count = torch.zeros(q.shape[1], v.shape[1], dtype=q.dtype), 0
    for i, q_i in enumerate(q):
        j = key_of.get(i)
        if j is not None:
            count += 1
            query_sum, key_sum = query_sum + q_i, key_sum + k[j]
            per_outgoing = per_outgoing + k[j] * count / (k[j] @ query_sum)
            per_incoming = per_incoming + q_i * count / (q_i @ key_sum)
            sources.append(k[j] @ per_incoming / count)
            competitors.append(count * torch.stack(sources).softmax(0)[-1])
            pairs = pairs + competitors[-1] * torch.outer(k[j], v[j])
        if count == 0:
            outputs.append(torch.zeros_like(v[0]))
            continue
        allocation = torch.sigmoid(q_i @ per_outgoing / count)
        outputs.append(allocation * (q_i @ pairs) / (q_i @ key_sum))
    return torch.stack(outputs)
