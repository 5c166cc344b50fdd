"""The YOSO kernel: weights are the probability that a query and a key share a hash code, or samples of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from reattend.attention.contract import Capabilities, MixerSpec
from reattend.attention.ops.collisions import expected_collisions, sampled_collisions
from reattend.attention.ops.hashing import sign_codes
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.unit import unit
from reattend.attention.slots import EVERYTHING, HeadGroup, Kernel


class Yoso(Kernel):
    """h_i = u_i / |u_i| with u_i = sum_j (1 - arccos(cos(q_i, k_j)) / pi)^b v_j.

    (Zeng et al. 2021, arXiv 2111.09714, section 3.) The weight is the probability that a query and a key have all b
    bits of a code in common, where a bit is the side of a random hyperplane. `expectation` computes it (YOSO-E, time
    N^2); otherwise it is estimated from `num_hashes` codes by adding up values in a table (time linear in N). There is
    no softmax; instead each output has length one.

    As published, queries and keys get an estimate of their gradients: b / 2 times the weight in place of its derivative
    in the cosine, a lower bound that is finite everywhere. `gradient=exact` gives YOSO-E its own, which is undefined,
    and here zero, for a query that is a multiple of a key. Everything is float32 at least, under autocast too. The
    published layer's optional convolution of the values is left out.

    Args:
        spec: the place it is built for.
        expectation: weights are probabilities; otherwise samples.
        code_length: bits b of a code.
        num_hashes: number of codes that are sampled.
        gradient: of queries and keys, `lower_bound` or `exact`.
        redraw: draw new hyperplanes at each forward pass in training, as the published code does; otherwise they are
            drawn once and kept in the checkpoint.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        expectation: bool = True,
        code_length: int = 9,
        num_hashes: int = 64,
        gradient: Literal["lower_bound", "exact"] = "lower_bound",
        redraw: bool = False,
    ) -> None:
        super().__init__(spec)
        self.code_length = code_length
        self.exact = gradient == "exact"
        self.redraw = redraw
        self.hyperplanes: Tensor | None
        drawn = None if expectation else torch.randn(num_hashes, spec.num_heads, self.head_dim, code_length)
        self.register_buffer("hyperplanes", drawn)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return replace(
            EVERYTHING,
            causal=False,
            decoding=False,
            attention_map=False,
            constant_state=False,
            time_exponent=2.0 if options.get("expectation", True) else 1.0,
            reasons={
                "causal": "its paper defines YOSO for whole sequences only",
                "attention_map": "outputs are scaled to length one, so they are no average of the values",
            },
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = []
        if not 1 <= options.get("code_length", 9) <= 16:
            found.append(
                f"code_length={options['code_length']} must be from 1 to 16: there is a table of 2^code_length"
            )
        if options.get("num_hashes", 64) < 1:
            found.append(f"num_hashes={options['num_hashes']} must be at least 1")
        if options.get("gradient") == "exact" and not options.get("expectation", True):
            found.append("gradient=exact is zero for sampled weights: set expectation=true or gradient=lower_bound")
        return found

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        dropout: float = 0.0,
        group: HeadGroup | None = None,
    ) -> Tensor:
        dtype = v.dtype
        if key_mask is not None:
            v = v.masked_fill(~key_mask[:, None, :, None], 0.0)
        with without_autocast(q):
            wide = torch.promote_types(q.dtype, torch.float32)
            q, k, v = unit(q.to(wide)), unit(k.to(wide)), v.to(wide)
            if self.hyperplanes is None:
                out = expected_collisions(q, k, v, self.code_length, self.exact)
            else:
                planes = torch.randn_like(self.hyperplanes) if self.redraw and self.training else self.hyperplanes
                planes = planes if group is None else planes[:, list(group.heads)]
                codes = (sign_codes(x.detach(), planes) for x in (q, k))
                out = sampled_collisions(q, k, v, *codes, self.code_length)
            return unit(out).to(dtype)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Cosines and weighted values; sampled: codes, and the sums in tables."""
        if self.hyperplanes is None:
            return 4 * num_queries * num_keys * self.head_dim
        tokens = len(self.hyperplanes) * (num_queries + num_keys)
        return tokens * self.head_dim * (2 * self.code_length + 1)
