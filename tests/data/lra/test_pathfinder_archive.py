"""The folders of the LRA release, written tiny in the same layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reattend.data.lra.pathfinder_archive import archive_index, read_images, split_archive
from reattend.errors import ReattendError


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Metadata files 0, 2 and 10 with two pictures each, all pixels 10 times the file's number plus the picture's."""
    folder = tmp_path / "pathfinder32" / "curv_baseline"
    (folder / "metadata").mkdir(parents=True)
    for batch in (10, 0, 2):
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for number in range(2):
            name = f"sample_{number}.png"
            Image.fromarray(np.full((32, 32), 10 * batch + number, np.uint8)).save(folder / "imgs" / str(batch) / name)
            lines.append(f"imgs/{batch} {name} {number} {(batch + number) % 2} 1.0 6 2 2 0.5 1 1\n")
        (folder / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return folder


def test_pictures_and_labels_come_in_the_order_of_the_numbers(archive: Path) -> None:
    paths, labels = archive_index(archive)
    assert labels.tolist() == [0, 1] * 3
    images = np.concatenate(list(read_images(paths, 32)))
    assert images.shape == (6, 32, 32)
    assert images.dtype == np.uint8
    assert images[:, 0, 0].tolist() == [0, 1, 20, 21, 100, 101]
    assert (images == images[:, :1, :1]).all()


def test_long_lists_come_in_blocks(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, _ = archive_index(archive)
    monkeypatch.setattr("reattend.data.lra.pathfinder_archive._IMAGES_PER_BLOCK", 4)
    blocks = list(read_images(paths, 32, workers=1))
    assert [block[:, 0, 0].tolist() for block in blocks] == [[0, 1, 20, 21], [100, 101]]


def test_the_one_empty_picture_of_the_release_is_left_out(archive: Path) -> None:
    line = "imgs/0 sample_172.png 172 1 1.0 6 2 2 0.5 1 1\n"
    with (archive / "metadata" / "0.npy").open("a") as file:
        file.write(line)
    (archive / "imgs" / "0" / "sample_172.png").write_bytes(b"")
    assert len(archive_index(archive)[0]) == 6
    (archive / "imgs" / "0" / "sample_1.png").write_bytes(b"")
    with pytest.raises(ReattendError, match=r"sample_1\.png is empty"):
        archive_index(archive)


def test_splits_are_a_fixed_partition() -> None:
    splits = split_archive(1009)
    assert [len(part) for part in splits.values()] == [807, 101, 101]
    assert sorted(np.concatenate(list(splits.values())).tolist()) == list(range(1009))
    assert splits["test"][:5].tolist() == split_archive(1009)["test"][:5].tolist() != [908, 909, 910, 911, 912]


def test_what_is_missing_or_damaged_is_named(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"no Pathfinder folder of the LRA release: it has no metadata"):
        archive_index(tmp_path)
    picture = archive / "imgs" / "2" / "sample_1.png"
    content = picture.read_bytes()
    picture.write_bytes(content[:40])
    paths, _ = archive_index(archive)
    with pytest.raises(ReattendError, match=r"2/sample_1\.png is no whole picture"):
        list(read_images(paths, 32))
    picture.unlink()
    with pytest.raises(ReattendError, match=r"2/sample_1\.png is missing"):
        archive_index(archive)
    Image.new("L", (64, 64)).save(picture)
    with pytest.raises(ReattendError, match=r"is 64x64 of mode L, and 32x32 in 8-bit grey is wanted"):
        list(read_images(paths, 32))
    Image.new("RGB", (32, 32)).save(picture)
    with pytest.raises(ReattendError, match="of mode RGB"):
        list(read_images(paths, 32))


@pytest.mark.parametrize(
    "line", ["imgs/0 sample_0.png 0", "imgs/0 sample_0.png 0 2 1.0", "../../other sample_0.png 0 1", ""]
)
def test_a_metadata_line_of_another_form_is_named(archive: Path, line: str) -> None:
    file = archive / "metadata" / "2.npy"
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(ReattendError, match=r"2\.npy, line 3: not a folder, a file, a number and a label"):
        archive_index(archive)


def test_metadata_that_are_no_text_are_named(archive: Path) -> None:
    np.save(archive / "metadata" / "2.npy", np.array([["imgs/0", "sample_0.png", "0", "1"]]))
    with pytest.raises(ReattendError, match=r"2\.npy cannot be read as text"):
        archive_index(archive)
