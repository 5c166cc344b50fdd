"""Growing the snakes of Pathfinder: two long ones, then distractors where there is room."""

from __future__ import annotations

import numpy as np

from reattend.data.lra.pathfinder_scenes import Field, Integers

_DISTRACTOR_TRIES = 5
_STEPS_PER_PADDLE = 8
_PADDLES_BACK = 6


def grow_targets(field: Field, length: int) -> Integers:
    """Grows both snakes of so many paddles by turns; returns the rows where both came to their full length.

    A scene that cannot go on takes up to six paddles back and tries anew, some times; then it is given up.
    """
    inner = 2 * field.geometry.seed_distance
    rows = field.seed(np.arange(field.batch), 0, inner, field.geometry.size - inner)
    rows = field.seed_beside(rows, length, 0)
    placed = np.full(field.batch, 2)
    for _ in range(_STEPS_PER_PADDLE * 2 * length):
        growing = rows[placed[rows] < 2 * length]
        if not len(growing):
            break
        found = field.extend(growing, _slot(placed[growing], length))
        placed[growing[found]] += 1
        stuck = growing[~found]
        for _ in range(_PADDLES_BACK):
            stuck = stuck[placed[stuck] > 2]
            placed[stuck] -= 1
            field.remove(stuck, _slot(placed[stuck], length))
    grown: Integers = rows[placed[rows] == 2 * length]
    return grown


def grow_distractors(field: Field, rows: Integers, first_slot: int, length: int, number: int) -> None:
    """Adds short snakes; where there is no room for one after five tries the scene has one less."""
    for index in range(number):
        slots = range(first_slot + index * length, first_slot + (index + 1) * length)
        waiting = rows
        for _ in range(_DISTRACTOR_TRIES):
            grown = field.seed(waiting, slots[0], 0, field.geometry.size)
            for slot in slots[1:]:
                grown = grown[field.extend(grown, slot)]
            waiting = np.setdiff1d(waiting, grown)
            for slot in slots:
                field.remove(waiting, slot)


def _slot(place: Integers, length: int) -> Integers:
    """Slot of the paddle that is placed as number `place`: the two snakes take turns."""
    return place % 2 * length + place // 2
