"""Work in blocks: in order, and not far ahead of the reader."""

from __future__ import annotations

import itertools

from reattend.data.lra.generated import in_order


def square(number: int) -> int:
    return number * number


def test_results_come_in_order_from_endless_tasks() -> None:
    for workers in (1, 2):
        tasks = itertools.count()
        results = in_order(square, tasks, workers)
        assert list(itertools.islice(results, 7)) == [number**2 for number in range(7)]
        results.close()
        assert next(tasks) <= 7 + 2 * workers
