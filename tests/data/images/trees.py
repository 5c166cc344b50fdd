"""Small sets of images in each form, of the same images."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reattend.data import ImageData
from reattend.data.images.sets import image_set

CLASSES = ("n01", "n02", "n03")
COUNTS = {"train": 6, "val": 4}


def files() -> dict[str, list[tuple[str, int, bytes]]]:
    """Of each split: name, class and bytes; JPEGs and PNGs in colour, grey, with a palette and in CMYK."""
    random = np.random.RandomState(0)
    modes = [("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG")]
    whole: dict[str, list[tuple[str, int, bytes]]] = {}
    for split, count in COUNTS.items():
        whole[split] = []
        for label in range(len(CLASSES)):
            for number in range(count):
                mode, form = modes[number % 4]
                height, width = random.randint(20, 40, 2)
                pixels = random.randint(0, 256, (height, width, 3)).astype(np.uint8)
                content = io.BytesIO()
                Image.fromarray(pixels).convert(mode).save(content, form)
                whole[split].append((f"{number}.{form}", label, content.getvalue()))
    return whole


def write_tree(folder: Path) -> None:
    for split, images in files().items():
        for name, label, content in images:
            path = folder / split / CLASSES[label] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_shards(folder: Path) -> None:
    (folder / "shards").mkdir(parents=True)
    for split, images in files().items():
        half = len(images) // 2
        for shard, part in enumerate((images[:half], images[half:])):
            with tarfile.open(folder / "shards" / f"{split}-{shard}.tar", "w") as archive:
                for number, (name, label, content) in enumerate(part):
                    suffix = name.rpartition(".")[2].lower()
                    _add(archive, f"{number}.{suffix}", content)
                    _add(archive, f"{number}.cls", str(label).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_hub(folder: Path, parquet: bool) -> None:
    import datasets

    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=list(CLASSES)))
    tables = {}
    for split, images in files().items():
        rows = {
            "image": [{"bytes": content, "path": name} for name, _, content in images],
            "label": [label for _, label, _ in images],
        }
        tables["validation" if split == "val" else split] = datasets.Dataset.from_dict(rows, features=features)
    if not parquet:
        datasets.DatasetDict(tables).save_to_disk(str(folder))
        return
    (folder / "parquet").mkdir(parents=True)
    for split, table in tables.items():
        table.to_parquet(str(folder / "parquet" / f"{split}-00000-of-00001.parquet"))


def prepare(root: Path, dataset: str = "mine", **options: Any) -> list[str]:
    said: list[str] = []
    chosen = {"standin": False, "form": None, "class_list": None, **options}
    image_set(dataset, root, **chosen).prepare(said.append, lambda done, total: None)
    return said


def data(root: Path | str, dataset: str = "mine", **options: Any) -> ImageData:
    usual = {"root": root, "batch_size": 6, "seed": 0, "image_size": 16, "loader_workers": 0}
    return ImageData(dataset, **{**usual, **options})
