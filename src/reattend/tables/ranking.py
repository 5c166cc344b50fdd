"""Rows ranked over many columns: Friedman's test, and Nemenyi's between pairs (Demsar 2006)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import scikit_posthocs
from scipy import stats

from reattend.tables.evidence import Ranking
from reattend.tables.table import Value

LEAST_ROWS, LEAST_COLUMNS = 3, 5


def rank(name: str, value: Value, rows: Sequence[str], means: Mapping[str, Mapping[str, float]]) -> Ranking | None:
    """Ranks `rows` in every column in which all of them have a mean; None with too few rows or columns.

    Where all rows are equal in every column Friedman's statistic is 0 / 0; its p is then 1.

    Args:
        name: of the value that is ranked.
        value: the same.
        rows: in table order; those without any mean are left out.
        means: row -> column -> mean.
    """
    rows = [row for row in rows if means.get(row)]
    if len(rows) < LEAST_ROWS:
        return None
    columns = [column for column in means[rows[0]] if all(column in means[row] for row in rows)]
    if len(columns) < LEAST_COLUMNS:
        return None
    sign = -1.0 if value.better == "higher" else 1.0
    table = sign * np.array([[means[row][column] for row in rows] for column in columns])
    ranks = stats.rankdata(table, axis=1).mean(0)
    pairs = scikit_posthocs.posthoc_nemenyi_friedman(table).to_numpy()
    count = len(rows)
    studentised = stats.studentized_range.ppf(0.95, count, np.inf) / math.sqrt(2)
    return Ranking(
        value=name,
        columns=tuple(columns),
        average_ranks=dict(zip(rows, map(float, ranks), strict=True)),
        friedman_p=float(stats.friedmanchisquare(*table.T).pvalue) if np.ptp(table, axis=1).any() else 1.0,
        nemenyi_p={(rows[i], rows[j]): float(pairs[i, j]) for i in range(count) for j in range(count) if i < j},
        critical_difference=float(studentised * math.sqrt(count * (count + 1) / (6 * len(columns)))),
    )
