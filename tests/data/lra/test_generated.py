"""Work in blocks: in order, and not far ahead of the reader."""

from __future__ import annotations

import itertools
from pathlib import Path

from reattend.data.lra.generated import in_order, is_whole, unfit, writing


def square(number: int) -> int:
    return number * number


def test_results_come_in_order_from_endless_tasks() -> None:
    for workers in (1, 2):
        tasks = itertools.count()
        results = in_order(square, tasks, workers)
        assert list(itertools.islice(results, 7)) == [number**2 for number in range(7)]
        results.close()
        assert next(tasks) <= 7 + 2 * workers


def write(folder: Path) -> None:
    with writing(folder, {"rule": "x"}, ("a", "b")) as temporary:
        for name in ("a", "b"):
            (temporary / name).write_text(f"content of {name}")


def test_a_damaged_file_is_found_whatever_its_size(tmp_path: Path) -> None:
    assert unfit(tmp_path) == []
    write(tmp_path)
    assert is_whole(tmp_path, {"rule": "x"})
    (tmp_path / "b").write_text("content of c")
    assert unfit(tmp_path) == ["b"]
    assert not is_whole(tmp_path, {"rule": "x"})
    (tmp_path / "a").unlink()
    assert unfit(tmp_path) == ["a", "b"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".generating-dead").mkdir()
    (tmp_path / ".generating-dead" / "a").touch()
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "generated.json"]
