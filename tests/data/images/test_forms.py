"""Reading each form, and what is said of files that are not as they should be."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from reattend.config import compose, read
from reattend.data.checksum import data_checksum
from reattend.data.facts import data_facts
from reattend.data.images.known import IMAGENET
from reattend.data.images.sets import image_set
from reattend.data.images.small import SmallSet, read_idx
from reattend.data.images.standin import LIST, idx, rule_checksum
from reattend.data.prepare import main
from reattend.data.prepared.standin_root import standin_root
from reattend.errors import ReattendError
from reattend.tables.cost import run_cost
from reattend.train.execute import build_data

from .trees import CLASSES, data, files, prepare, write_hub, write_shards, write_tree


def evaluated(module: Any) -> tuple[torch.Tensor, list[int]]:
    batches = list(module.test_dataloader())
    return torch.cat([batch["x"] for batch in batches]), torch.cat([batch["y"] for batch in batches]).tolist()


def test_all_forms_give_the_same_bits(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree")
    write_shards(tmp_path / "shards")
    write_hub(tmp_path / "disk", parquet=False)
    write_hub(tmp_path / "table", parquet=True)
    change = transforms.Compose(
        [
            transforms.Resize(18, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(16),
            transforms.ToTensor(),
            transforms.Normalize(*IMAGENET),
        ]
    )
    wanted = {
        label: [
            change(Image.open(io.BytesIO(content)).convert("RGB")) for _, own, content in files()["val"] if own == label
        ]
        for label in range(3)
    }
    for name, form in (("tree", "imagefolder"), ("shards", "tar_shards"), ("disk", "hub"), ("table", "hub")):
        prepare(tmp_path, name)
        module = data(tmp_path, name, crop_ratio=0.875)
        assert module.origin == form
        assert module.shape == {"image_size": 16, "channels": 3, "num_outputs": 3}
        assert module.sizes == {"train": 18, "test": 12}
        x, y = evaluated(module)
        assert sorted(y) == [0] * 4 + [1] * 4 + [2] * 4
        for label in range(3):
            rows = [row for row, own in zip(x, y, strict=True) if own == label]
            # A folder is read by file name, the others as they are written.
            expected = wanted[label]
            if form == "imagefolder":
                order = sorted(range(4), key=lambda i: [name for name, own, _ in files()["val"] if own == label][i])
                expected = [expected[i] for i in order]
            assert all(torch.equal(row, image) for row, image in zip(rows, expected, strict=True))


def test_two_forms_at_once_are_refused_until_one_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    write_shards(tmp_path / "mine")
    with pytest.raises(ReattendError, match=r"imagefolder and tar_shards.*task.data_options.form=imagefolder or"):
        data(tmp_path)
    for form in ("imagefolder", "tar_shards"):
        prepare(tmp_path, form=form)
        assert data(tmp_path, form=form).origin == form


def test_a_test_set_beside_the_validation_set_is_left_alone(tmp_path: Path) -> None:
    """As ImageNet's, whose classes are secret."""
    write_shards(tmp_path / "mine")
    write_hub(tmp_path / "table", parquet=True)
    shutil.copy(tmp_path / "mine" / "shards" / "val-0.tar", tmp_path / "mine" / "shards" / "test-0.tar")
    parquet = tmp_path / "table" / "parquet"
    shutil.copy(next(parquet.glob("validation-*")), parquet / "test-00000-of-00001.parquet")
    for name in ("mine", "table"):
        prepare(tmp_path, name)
        assert data(tmp_path, name).sizes["test"] == len(files()["val"])


def test_preparing_lists_once_and_again_after_a_change(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    with pytest.raises(ReattendError, match=r"not prepared yet: .*task.dataset=mine data.root="):
        data(tmp_path)
    prepare(tmp_path)
    first = data(tmp_path).checksum
    assert "prepared already and whole" in prepare(tmp_path)[0]
    path = tmp_path / "mine" / "val" / "n01" / "0.JPEG"
    path.write_bytes(path.read_bytes() + b"\0")
    assert "changed since it was prepared" in prepare(tmp_path)[0]
    assert data(tmp_path).checksum != first
    path.rename(path.with_name("9.JPEG"))
    with pytest.raises(ReattendError, match=r"0\.JPEG cannot be read.*prepare it again"):
        evaluated(data(tmp_path))


def test_nothing_is_written_into_the_folder_of_the_images(tmp_path: Path) -> None:
    shared, root = tmp_path / "shared", tmp_path / "root"
    root.mkdir()
    write_tree(shared / "mine")
    (root / "mine").symlink_to(shared / "mine")
    before = sorted(shared.rglob("*"))
    prepare(root)
    assert data(root).sizes["train"] > 0
    assert sorted(shared.rglob("*")) == before


def test_a_worker_tells_the_same_error(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    prepare(tmp_path)
    (tmp_path / "mine" / "val" / "n01" / "0.JPEG").unlink()
    with pytest.raises(ReattendError) as caught:
        evaluated(data(tmp_path, loader_workers=1))
    assert "Traceback" not in str(caught.value)


def test_shards_that_do_not_fit_together(tmp_path: Path) -> None:
    write_shards(tmp_path / "mine")
    path = tmp_path / "mine" / "shards" / "val-1.tar"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0.cls", b"7.cls", 1))
    with pytest.raises(ReattendError, match=r"val-1.tar: . has no (class|image)"):
        prepare(tmp_path)
    path.write_bytes(content[:700])
    with pytest.raises(ReattendError, match=r"val-1.tar"):
        prepare(tmp_path)
    for path in (tmp_path / "mine" / "shards").glob("val-*"):
        path.unlink()
    with pytest.raises(ReattendError, match=r"no val-\*.tar or validation-\*.tar or test-\*.tar"):
        prepare(tmp_path)


def test_a_flat_validation_folder_is_told_how_to_be_sorted(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    for path in (tmp_path / "mine" / "val").glob("*/*"):
        path.rename(tmp_path / "mine" / "val" / f"{path.parent.name}_{path.name}")
    for path in (tmp_path / "mine" / "val").iterdir():
        if path.is_dir():
            path.rmdir()
    with pytest.raises(ReattendError, match=r"side by side.*valprep.sh"):
        prepare(tmp_path)


def test_classes_have_to_be_those_of_both_folders(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    (tmp_path / "mine" / "val" / "n03").rename(tmp_path / "mine" / "val" / "n04")
    with pytest.raises(ReattendError, match=r"train has no folder for n04, which .*val has"):
        prepare(tmp_path)


def test_shards_that_have_gone_since_they_were_listed_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shards(tmp_path / "mine")
    prepare(tmp_path)
    for path in (tmp_path / "mine" / "shards").glob("val-*.tar"):
        path.unlink()
    assert main(["task=imagenet/deit_tiny", "task.dataset=mine", f"data.root={tmp_path}"]) == 1
    assert "shards/val-0.tar/0.jpeg cannot be read: No such file or directory. It was there" in capsys.readouterr().err


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    link = tmp_path / "mine" / "val" / "n02" / "gone.jpg"
    link.symlink_to(tmp_path / "elsewhere.jpg")
    with pytest.raises(ReattendError, match=f"^{link} cannot be read: No such file or directory.$"):
        prepare(tmp_path)


def test_a_class_list_chooses_and_numbers_classes(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    write_shards(tmp_path / "numbered")
    prepare(tmp_path)
    prepare(tmp_path, "numbered")
    (tmp_path / "list.txt").write_text("n03\nn01 a word\n")
    module = data(tmp_path, class_list="list.txt")
    assert module.sizes == {"train": 12, "test": 8}
    assert module.shape["num_outputs"] == 2
    x, y = evaluated(module)
    whole, labels = evaluated(data(tmp_path))
    rows = [row for row, label in enumerate(labels) if label != 1]
    assert torch.equal(x, whole[rows])
    assert y == [0] * 4 + [1] * 4
    assert module.checksum != data(tmp_path).checksum
    with pytest.raises(ReattendError, match=r"has no class n03, n01 of the class list.*imagefolder"):
        data(tmp_path, "numbered", class_list="list.txt")
    (tmp_path / "list.txt").write_text("n01\nn3\n")
    told = r"has no class n3 of the class list. Did you mean 'n03'\? Its 3 classes are called n01, n02, n03.$"
    with pytest.raises(ReattendError, match=told):
        data(tmp_path, class_list="list.txt")
    with pytest.raises(ReattendError, match=r"absent.txt cannot be read.*one a line"):
        data(tmp_path, class_list="absent.txt")
    (tmp_path / "list.txt").write_text("n03\nn03\n")
    with pytest.raises(ReattendError, match="names n03 twice"):
        data(tmp_path, class_list="list.txt")


def test_imagenet_100_is_found_inside_imagenet_and_its_list_has_to_be_whole(tmp_path: Path) -> None:
    write_tree(tmp_path / "imagenet-1k")
    prepare(tmp_path, "imagenet-100")
    with pytest.raises(ReattendError, match=r"imagenet100.txt cannot be read.*IN100.txt"):
        data(tmp_path, "imagenet-100", class_list="imagenet100.txt")
    (tmp_path / "imagenet100.txt").write_text("\n".join(CLASSES))
    with pytest.raises(ReattendError, match="names 3 classes; imagenet-100 has 100"):
        data(tmp_path, "imagenet-100", class_list="imagenet100.txt")


def test_missing_data_says_what_where_and_how(tmp_path: Path) -> None:
    for name, words in (
        ("imagenet-1k", ["imagefolder", "tar_shards", "image-net.org", "task=imagenet/deit_tiny", "data=standin"]),
        ("fashion_mnist", ["t10k-labels", "dataset-fashion-mnist", "task=image/fashion_mnist", "data=standin"]),
        ("cifar10", ["data_batch_1", "cifar-10-python.tar.gz", "task=image/cifar10"]),
        ("imagenet-1", ["Did you mean 'imagenet-1k'"]),
    ):
        with pytest.raises(ReattendError) as caught:
            data(tmp_path, name)
        assert all(word in str(caught.value) for word in [*words, str(tmp_path)])
    with pytest.raises(ReattendError, match="There is no stand-in for the images mine"):
        data(tmp_path, "mine", standin=True)


def test_preparing_reports_classes_and_files_that_are_no_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tmp_path / "mine")
    bad = tmp_path / "mine" / "train" / "n02" / "0.JPEG"
    bad.write_bytes(bad.read_bytes()[:-100])
    odd = tmp_path / "mine" / "train" / "n02" / "4.JPEG"
    odd.write_bytes(odd.read_bytes() + b"trailing")  # Pillow reads it all the same
    for split, content in (("train", b""), ("val", b"text")):
        (tmp_path / "mine" / split / "n01" / "1.JPEG").write_bytes(content)
    (tmp_path / "mine" / "train" / "n01" / "notes.txt").write_text("text")
    (tmp_path / "mine" / "train" / "n01" / "folder.jpg").mkdir()
    told = ["task=imagenet/deit_tiny", "task.dataset=mine", f"data.root={tmp_path}"]
    assert main(told) == 0
    printed = capsys.readouterr().out
    assert "train 18 images of 3 classes, 6 / 6 / 6 of a class" in printed
    assert "train/n02/0.JPEG is no whole image (image file is truncated" in printed
    assert "train/n01/1.JPEG is no whole image (it is empty)" in printed
    assert "val/n01/1.JPEG is no whole image (of no form that Pillow knows)" in printed
    assert "warning: 3 file(s) are no images" in printed
    (tmp_path / "mine").rename(tmp_path / "imagenet-1k")
    assert main(["task=imagenet/deit_tiny", f"data.root={tmp_path}"]) == 1
    assert "imagenet-1k has 1000 classes, and 3 are here" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["fashion-mnist", "fashion_mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_where_others_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, packed: bool
) -> None:
    monkeypatch.setitem(_known_sizes("fashion_mnist", monkeypatch), "train", 512)
    monkeypatch.setitem(_known_sizes("fashion_mnist", monkeypatch), "test", 128)
    standin = data("absent", "fashion_mnist", standin=True, image_size=28)
    (tmp_path / place).mkdir(parents=True)
    for path in (standin_root() / "images" / "fashion_mnist").glob("*.gz"):
        content = path.read_bytes()
        name = path.name if packed else path.stem
        (tmp_path / place / name).write_bytes(content if packed else gzip.decompress(content))
    module = data(tmp_path, "fashion_mnist", image_size=28)
    assert module.checksum == standin.checksum
    assert (module.origin, standin.origin) == ("fashion_mnist", "stand-in")
    pixels = read_idx(next((tmp_path / place).glob("t10k-images*")))
    x, _ = evaluated(module)
    assert torch.allclose(x[:, 0], (torch.tensor(pixels) / 255 - 0.2860) / 0.3530)


def _known_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    from reattend.data.images.known import KNOWN

    sizes: Any = KNOWN[name].sizes
    return sizes


def test_fashion_mnist_has_to_be_whole(tmp_path: Path) -> None:
    data("absent", "fashion_mnist", standin=True, image_size=28)
    (tmp_path / "fashion_mnist").mkdir()
    for path in (standin_root() / "images" / "fashion_mnist").glob("*.gz"):
        (tmp_path / "fashion_mnist" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ReattendError, match="512 images in place of 60,000"):
        data(tmp_path, "fashion_mnist")
    labels = tmp_path / "fashion_mnist" / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.zeros(5, np.uint8))))
    with pytest.raises(ReattendError, match="not the images and classes of one set"):
        SmallSet("fashion_mnist", tmp_path, False).open()
    labels.write_bytes(gzip.compress(b"\0\0\x0d\x01\0\0\0\x01\0"))
    with pytest.raises(ReattendError, match=r"no whole idx file .its magic number is 00000d01"):
        SmallSet("fashion_mnist", tmp_path, False).open()
    labels.unlink()
    with pytest.raises(ReattendError, match="has no t10k-labels-idx1-ubyte"):
        data(tmp_path, "fashion_mnist")


def test_cifar10_by_hand() -> None:
    module = data("absent", "cifar10", standin=True, image_size=32)
    folder = standin_root() / "images" / "cifar10" / "cifar-10-batches-py"
    batch = pickle.loads((folder / "test_batch").read_bytes(), encoding="bytes")
    x, y = evaluated(module)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    expected = torch.tensor(batch[b"data"]).view(-1, 3, 32, 32) / 255
    assert torch.allclose(x, (expected - mean) / deviation, atol=1e-6)
    assert y == batch[b"labels"]
    assert module.sizes == {"train": 640, "test": 128}


def test_small_sets_have_one_form_and_all_classes() -> None:
    with pytest.raises(ReattendError, match="form=hub: cifar10 has the form cifar10 alone"):
        data("absent", "cifar10", form="hub")
    with pytest.raises(ReattendError, match="used with all of its ten classes"):
        data("absent", "cifar10", class_list="x.txt")
    with pytest.raises(ReattendError, match="form=cifar10: imagenet-1k may be imagefolder, hub, tar_shards"):
        data("absent", "imagenet-1k", form="cifar10")


def test_a_stand_in_is_known_by_its_rule_and_not_by_the_library_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checksums(cache: str) -> list[str]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        return [image_set("imagenet-100", "nowhere", True, None, chosen).open().checksum for chosen in (None, LIST)]

    first = checksums("one")
    assert len({*first, rule_checksum("imagenet-1k")}) == 3
    save = Image.Image.save
    monkeypatch.setattr(Image.Image, "save", lambda image, path, quality: save(image, path, quality=quality - 10))
    assert checksums("other") == first
    trees = [{path.stat().st_size for path in (tmp_path / cache).rglob("*.JPEG")} for cache in ("one", "other")]
    assert trees[0] != trees[1]


@pytest.mark.parametrize(("fidelity", "updates"), [("published", 3), ("corrected", 4)])
def test_deit_drops_the_last_incomplete_batch(fidelity: str, updates: int) -> None:
    task = ["task=imagenet/deit_tiny", f"fidelity={fidelity}", "data=standin"]
    config = read(compose([*task, "recipe.batch_size=100", "recipe.epochs=6", "trainer.loader_workers=0"]))
    loader = build_data(config).train_dataloader()
    assert len(loader) == updates
    assert config.recipe.steps(360) == 6 * updates
    assert config.backbone.options["class_token_std"] == (0.02 if fidelity == "published" else None)


def test_too_little_for_one_whole_batch_is_told() -> None:
    told = (
        r"batch_size=1024: imagenet-1k has 360 samples.*recipe.batch_size=360 at most, or recipe.last_train_batch=kept"
    )
    config = read(compose(["task=imagenet/deit_tiny", "data=standin"]))
    for refused in (build_data, run_cost):  # a plan has such a cell blocked
        with pytest.raises(ReattendError, match=told):
            refused(config)


@pytest.mark.parametrize(
    "task", ["imagenet/deit_tiny", "imagenet100/deit_small", "image/fashion_mnist", "image/cifar10"]
)
def test_what_is_known_without_reading_is_true(task: str) -> None:
    overrides = [f"task={task}", "data=standin", "scale=quick"]
    for protocol in ("published", "strict"):
        config = read(compose([*overrides, f"protocol={protocol}"]))
        facts = data_facts(config)
        strict = {"selection": "validation", "validation_fraction": 0.2} if protocol == "strict" else {}
        options = config.task.data_options
        module = data("absent", config.task.dataset or "", standin=True, **options, **strict)
        assert facts.shape == module.shape
        assert {"validation": 0, **module.sizes} == facts.sizes
        assert data_checksum(config) == module.checksum
    if task != "imagenet100/deit_small":
        real = data_facts(read(compose([f"task={task}", "data.root=absent"])))
        assert real.sizes["train"] > 40_000
