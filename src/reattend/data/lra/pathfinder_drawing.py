"""Pictures of Pathfinder scenes, and a sheet of them for the eye."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from reattend.data.lra.pathfinder_scenes import Floats, Geometry, Integers, Scenes, squared_distance

Images = npt.NDArray[np.uint8]


def draw(scenes: Scenes, marked: Floats, geometry: Geometry) -> Images:
    """Grey-scale pictures (B, size, size): paddles and the two dots at `marked`, (B, 2, 2) as x, y.

    A paddle covers the part p = min(1, max(0, thickness / 2 + 1/2 - r)) of a pixel whose centre is at the distance r
    from its middle line, and gives it the brightness 255 min(1, contrast p). A dot does likewise with its radius and
    contrast 1. Where several fall on one pixel the brightest counts.
    """
    batch, slots = scenes.directions.shape
    reach = int(np.ceil(max(geometry.paddle_length / 2 + geometry.thickness, geometry.marker_radius))) + 1
    canvas = np.zeros((batch, geometry.size + 2 * reach, geometry.size + 2 * reach), np.uint8)
    heads = scenes.heads(geometry)
    for slot in range(slots):
        rows = np.flatnonzero(scenes.directions[:, slot] >= 0)
        tails, directions = scenes.tails[rows, slot], scenes.directions[rows, slot]
        centre, x, y = _around((tails + heads[rows, slot]) / 2, reach)
        away = np.sqrt(
            squared_distance(centre, tails[:, None, None], directions[:, None, None], geometry.paddle_length)
        )
        _brighten(canvas, rows, x, y, geometry.thickness / 2 + 0.5 - away, geometry.contrast, reach)
    for marker in range(2):
        centre, x, y = _around(marked[:, marker], reach)
        from_middle = centre - marked[:, marker][:, None, None]
        away = np.sqrt(from_middle[..., 0] ** 2 + from_middle[..., 1] ** 2)
        _brighten(canvas, np.arange(batch), x, y, geometry.marker_radius + 0.5 - away, 1.0, reach)
    return np.ascontiguousarray(canvas[:, reach:-reach, reach:-reach])


def save_sheet(path: str | Path, images: Images, labels: Integers, columns: int = 8, zoom: int = 4) -> None:
    """Writes a PNG with the pictures in a grid, each under its number and "connected" or "not connected"."""
    from PIL import Image, ImageDraw

    side = images.shape[1] * zoom
    rows = -(-len(images) // columns)
    sheet = Image.new("L", (columns * (side + 6) + 6, rows * (side + 20) + 6), 96)
    pen = ImageDraw.Draw(sheet)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        left, top = 6 + index % columns * (side + 6), index // columns * (side + 20)
        pen.text((left, top + 4), f"{index} {'connected' if label else 'not connected'}", fill=255)
        sheet.paste(Image.fromarray(image).resize((side, side), Image.Resampling.NEAREST), (left, top + 18))
    sheet.save(path)


def _around(middle: Floats, reach: int) -> tuple[Floats, Integers, Integers]:
    """Pixels about these points: their centres (B, n, n, 2), their columns and their rows."""
    offsets = np.arange(-reach, reach + 1)
    corner = np.floor(middle).astype(np.int64)
    x, y = np.broadcast_arrays(corner[:, 0, None, None] + offsets, corner[:, 1, None, None] + offsets[:, None])
    return np.stack([x, y], axis=-1) + 0.5, x, y


def _brighten(
    canvas: Images, rows: Integers, x: Integers, y: Integers, part: Floats, contrast: float, reach: int
) -> None:
    light = np.rint(255.0 * np.minimum(contrast * np.clip(part, 0.0, 1.0), 1.0)).astype(np.uint8)
    place = rows[:, None, None], y + reach, x + reach
    canvas[place] = np.maximum(canvas[place], light)
