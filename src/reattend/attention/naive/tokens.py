"""Where the queries and keys of one head of one sample stand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tokens:
    """What a kernel's twin may need beside queries, keys and values, which are those of one head of one sample.

    Attributes:
        head: index of the head.
        queries: for each query whether it is a real token; query i is token i. Padding is among the queries.
        keys: for each key the tokens that it stands for, all real. Padding is not among the keys.
    """

    head: int
    queries: list[bool]
    keys: list[list[int]]
