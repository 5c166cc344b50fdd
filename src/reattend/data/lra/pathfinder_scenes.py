"""Geometry of Pathfinder: paddles (short dashes) in rows that bend, which keep clear of each other.

All scenes of a batch grow at once, paddle by paddle. Paddles begin on a lattice and have one of 48 directions, so that
all a choice needs (where a paddle may go, what it keeps free around itself) lies in tables of whole numbers: a scene
is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_DIRECTIONS = 48
_ANGLES = 2.0 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
# Cosine and sine differ in the last bit between processors.
UNIT: Floats = np.round(np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1), 12)

_SEED_TRIES = 16


@dataclass(frozen=True)
class Geometry:
    """Measures of a scene in pixels.

    Args:
        size: side of the image.
        paddle_length: length of a paddle.
        thickness: thickness of a paddle.
        margins: half the gap between paddles in a row; one is drawn for each image.
        marker_radius: radius of the two dots.
        seed_distance: distance between the beginnings of the two snakes.
        continuity: a turn by the angle a has the weight cos^2(min(continuity |a|, 90 degrees)).
        distractor_paddles: paddles of all distractors together, at most.
        contrast: brightness of a paddle, where a dot has 1.
        per_pixel: lattice points per pixel and axis, the centres of as many cells.
    """

    size: int
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]
    marker_radius: float
    seed_distance: int
    continuity: float
    distractor_paddles: int
    contrast: float
    per_pixel: int


@dataclass
class Scenes:
    """Paddles of a batch of B scenes, S slots each: tails (B, S, 2) as x, y; directions (B, S), -1 for none.

    Slots 0 to L - 1 are the first snake, L to 2 L - 1 the second, in order from its beginning. In pixels; the centre
    of the first pixel is at 0.5, 0.5.
    """

    tails: Floats
    directions: Integers

    def heads(self, geometry: Geometry) -> Floats:
        """Where the paddles end, (B, S, 2)."""
        heads: Floats = self.tails + geometry.paddle_length * UNIT[self.directions]
        return heads

    def take(self, rows: Integers) -> Scenes:
        """The scenes of these rows."""
        return Scenes(self.tails[rows], self.directions[rows])


class Field:
    """A batch of scenes while it grows.

    `count` holds for each lattice point the number of paddles that are nearer to it than 2 margins, and 1 more where
    it lies too near to the border.

    Args:
        geometry: measures of the scenes.
        batch: number of scenes.
        slots: paddles per scene at most.
        random: the stream all choices come from.
    """

    def __init__(self, geometry: Geometry, batch: int, slots: int, random: np.random.RandomState) -> None:
        self.geometry, self.random, self.batch = geometry, random, batch
        self.margin = random.randint(len(geometry.margins), size=batch)
        self.tails = np.zeros((batch, slots, 2), np.int64)
        self.directions = np.full((batch, slots), -1)
        widest, fine = max(geometry.margins), geometry.per_pixel
        self.pad = (2 * geometry.paddle_length + 2 * widest) * fine + 1
        self.side = geometry.size * fine + 2 * self.pad
        # So far from the border that the dots lie in the picture whole.
        border = self.pad + int(np.ceil((geometry.marker_radius + 0.5) * fine - 0.5))
        blocked = np.ones((self.side, self.side), np.int8)
        blocked[border : self.side - border, border : self.side - border] = 0
        self.count = np.tile(blocked.ravel(), batch)
        self._make_tables()

    def _make_tables(self) -> None:
        """Displacements on the lattice from a paddle's tail, by margin and direction: see the comments."""
        geometry, fine = self.geometry, self.geometry.per_pixel
        length = geometry.paddle_length
        margins = np.asarray(geometry.margins, float)[:, None, None]
        angle = 2.0 * np.pi / _DIRECTIONS
        bend = np.arange(-_DIRECTIONS // 2, _DIRECTIONS // 2)
        bend = bend[np.abs(bend) * angle * geometry.continuity < np.pi / 2 - 1e-9]
        self.weights = np.round(np.cos(geometry.continuity * bend * angle) ** 2, 12)
        # Directions (last, bend) and tails (margin, last, bend, 2) of the paddles that may come next.
        self.next_directions = (np.arange(_DIRECTIONS)[:, None] + bend) % _DIRECTIONS
        ahead = (length + margins)[..., None] * UNIT[:, None] + margins[..., None] * UNIT[self.next_directions]
        self.next_tails = _lattice(ahead * fine)
        # Points along a paddle, (direction, point, 2).
        along = np.linspace(0.0, length, length + 1)[:, None]
        self.points = _lattice(along * UNIT[:, None] * fine)
        next_points = self.next_tails[..., None, :] + self.points[self.next_directions]
        self.next_points = self._flat(next_points)
        # Points of the next paddle that the last one itself covers do not count.
        last = np.arange(_DIRECTIONS)[:, None, None]
        near = (2.0 * margins[..., None]) ** 2
        self.next_own = (_squared(next_points / fine, last, length) < near - 1e-9).astype(np.int8)
        reach = int(np.ceil((length / 2 + 2 * max(geometry.margins)) * fine)) + 1
        around = np.arange(-reach, reach + 1)
        window = np.stack(np.meshgrid(around, around), axis=-1).reshape(-1, 2)
        window = _lattice(length / 2 * UNIT[:, None] * fine) + window
        self.window = self._flat(window)
        self.covered = (_squared(window / fine, last[..., 0], length) < near[..., 0] - 1e-9).astype(np.int8)

    def scenes(self, rows: Integers) -> Scenes:
        """These scenes in pixels."""
        return Scenes((self.tails[rows] + 0.5) / self.geometry.per_pixel, self.directions[rows])

    def seed(self, rows: Integers, slot: int, low: int, high: int) -> Integers:
        """Puts a first paddle whose tail lies in the square from `low` to `high`; returns the rows with room for it."""
        fine = self.geometry.per_pixel
        tails = self.random.randint(low * fine, high * fine, size=(len(rows), _SEED_TRIES, 2))
        return self._put_first_free(rows, slot, tails)

    def seed_beside(self, rows: Integers, slot: int, first: int) -> Integers:
        """Puts a first paddle at the seed distance from the tail in slot `first`; returns the rows with room for it."""
        around = self.random.randint(_DIRECTIONS, size=(len(rows), _SEED_TRIES))
        away = _lattice(self.geometry.seed_distance * self.geometry.per_pixel * UNIT)
        return self._put_first_free(rows, slot, self.tails[rows, first][:, None] + away[around])

    def extend(self, rows: Integers, slot: int | Integers) -> npt.NDArray[np.bool_]:
        """Puts a paddle in `slot`, one for all or one a row, that goes on from the one before; says where it could."""
        before = self.tails[rows, slot - 1]
        margin, last = self.margin[rows], self.directions[rows, slot - 1]
        taken = self.count[self._place(rows, before)[:, None, None] + self.next_points[margin, last]]
        free = (taken <= self.next_own[margin, last]).all(axis=2)
        # A running sum, whose order is fixed, where a sum's is not.
        below = np.cumsum(np.where(free, self.weights, 0.0), axis=1)
        drawn = self.random.random_sample(len(rows)) * below[:, -1]
        chosen = (below > drawn[:, None]).argmax(axis=1)
        found: npt.NDArray[np.bool_] = below[:, -1] > 0
        tails, directions = before + self.next_tails[margin, last, chosen], self.next_directions[last, chosen]
        self._put(rows[found], np.broadcast_to(slot, rows.shape)[found], tails[found], directions[found])
        return found

    def remove(self, rows: Integers, slot: int | Integers) -> None:
        """Takes the paddle in `slot`, one for all or one a row, out again, where there is one."""
        present = self.directions[rows, slot] >= 0
        rows, slots = rows[present], np.broadcast_to(slot, rows.shape)[present]
        self._cover(rows, slots, -1)
        self.directions[rows, slots] = -1

    def _put_first_free(self, rows: Integers, slot: int, tails: Integers) -> Integers:
        directions = self.random.randint(_DIRECTIONS, size=tails.shape[:2])
        points = self._flat(self.points[directions])
        free = (self.count[self._place(rows[:, None], tails)[..., None] + points] == 0).all(axis=2)
        chosen, found, index = free.argmax(axis=1), free.any(axis=1), np.arange(len(rows))
        self._put(rows[found], slot, tails[index, chosen][found], directions[index, chosen][found])
        placed: Integers = rows[found]
        return placed

    def _put(self, rows: Integers, slot: int | Integers, tails: Integers, directions: Integers) -> None:
        self.tails[rows, slot] = tails
        self.directions[rows, slot] = directions
        self._cover(rows, slot, 1)

    def _cover(self, rows: Integers, slot: int | Integers, change: int) -> None:
        directions = self.directions[rows, slot]
        place = self._place(rows, self.tails[rows, slot])[:, None] + self.window[directions]
        self.count[place] += self.covered[self.margin[rows], directions] * np.int8(change)

    def _place(self, rows: Integers, points: Integers) -> Integers:
        return self._flat(points + self.pad) + rows * self.side**2

    def _flat(self, points: Integers) -> Integers:
        place: Integers = points[..., 1] * self.side + points[..., 0]
        return place


def squared_distance(points: Floats, tails: Floats, directions: Integers, length: float) -> Floats:
    """Squared distance of points (..., 2) from the paddles with these tails and directions, which broadcast."""
    return _squared(points - tails, directions, length)


def _lattice(points: Floats) -> Integers:
    return np.rint(points).astype(np.int64)


def _squared(from_tail: Floats, directions: Integers, length: float) -> Floats:
    unit = UNIT[directions]
    along = np.clip(from_tail[..., 0] * unit[..., 0] + from_tail[..., 1] * unit[..., 1], 0.0, length)
    x, y = from_tail[..., 0] - along * unit[..., 0], from_tail[..., 1] - along * unit[..., 1]
    squared: Floats = x * x + y * y
    return squared
