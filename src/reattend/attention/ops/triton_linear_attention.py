"""Causal linear attention by the Triton kernels of flash-linear-attention, on CUDA and where it is installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util

import torch
from torch import Tensor


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("fla") is not None


def serves(query: Tensor, value: Tensor) -> bool:
    """Whether `triton_sums_over_past` can be called, and is as precise as the caller's settings ask for.

    The kernels multiply in TensorFloat-32 or bfloat16, so that float32 values need PyTorch's leave to do so
    (`torch.set_float32_matmul_precision`). They are not part of a compiled graph, and take no sequence that is shorter
    than the number of heads.
    """
    return (
        query.is_cuda
        and query.dtype == torch.float32
        and (value.dtype == torch.bfloat16 or torch.get_float32_matmul_precision() != "highest")
        and query.shape[2] >= query.shape[1]
        and not torch.compiler.is_compiling()
        and _installed()
    )


def triton_sums_over_past(query: Tensor, key: Tensor, value: Tensor, normalised: bool) -> Tensor:
    """sum_(j <= i) (query_i . key_j) v_j (B, H, N, D) in float32, where normalised with one more column, the same of 1.

    Takes (B, H, N, F), (B, H, N, F) and (B, H, N, D). The last column is summed in float32 outside the kernels.
    """
    chunk_linear_attn = importlib.import_module("fla.ops.linear_attn").chunk_linear_attn
    kind = torch.bfloat16 if value.dtype == torch.bfloat16 else torch.float32
    factors = (x.to(kind).transpose(1, 2).contiguous() for x in (query, key, value))
    sums: Tensor = chunk_linear_attn(*factors, scale=1.0, normalize=False)[0].transpose(1, 2).float()
    if not normalised:
        return sums
    return torch.cat([sums, (query * key.cumsum(2)).sum(-1, keepdim=True)], -1)
