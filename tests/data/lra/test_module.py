"""The data module: what a model gets, against a plain reading of the raw files."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.config import build
from reattend.config.problems import ConfigError
from reattend.data import LRAData
from reattend.data.lra.sets import raw_set
from reattend.data.samplers import TrainSampler
from reattend.errors import ReattendError


def data(dataset: str, **options: Any) -> LRAData:
    usual = {"root": "absent", "batch_size": 32, "seed": 0, "max_length": 256, "standin": True}
    return LRAData(dataset, **{**usual, **options})


def padded(rows: list[list[int]], length: int) -> Tensor:
    return torch.tensor([(row + [0] * length)[:length] for row in rows])


def joined(loader: Any, key: str) -> Tensor:
    return torch.cat([batch[key] for batch in loader])


def reviews(split: str) -> list[tuple[int, list[int]]]:
    """Label and ids, from the files themselves."""
    folder = raw_set("text", "absent", standin=True).folder / "aclImdb" / split
    samples = [
        (label, path.read_bytes()) for label, name in enumerate(("neg", "pos")) for path in (folder / name).iterdir()
    ]
    return [(label, [byte + 1 for byte in review]) for label, review in sorted(samples)]


def test_text_by_hand() -> None:
    module = data("text", max_length=320, text_bytes=300)
    assert module.shape == {"vocabulary": 257, "num_documents": 1, "max_length": 320, "num_outputs": 2}
    assert (module.kind, module.origin, module.sizes) == ("classification", "stand-in", {"train": 512, "test": 128})
    samples = reviews("test")
    expected = padded([review[:300] for _, review in samples], 320)
    loader = module.test_dataloader()
    assert torch.equal(joined(loader, "x"), expected)
    assert torch.equal(joined(loader, "padding_mask"), expected != 0)
    assert joined(loader, "y").tolist() == [label for label, _ in samples]
    assert module.validation is None
    assert torch.equal(joined(module.val_dataloader(), "x"), expected)


def test_a_whole_epoch_of_training() -> None:
    module = data("text")
    samples = reviews("train")
    loader = module.train_dataloader()
    assert isinstance(loader.sampler, TrainSampler)
    seen = []
    for batch, wanted in zip(loader, TrainSampler(len(samples), 32, 0), strict=True):
        chosen = [samples[index] for index in wanted.indices]
        assert torch.equal(batch["x"], padded([review for _, review in chosen], 256))
        assert batch["y"].tolist() == [label for label, _ in chosen]
        assert batch["weight"].tolist() == [1.0] * 32
        assert batch["global_size"] == 32
        seen += wanted.indices.tolist()
    assert sorted(seen) == list(range(512))
    assert len(data("text", steps_per_epoch=5).train_dataloader()) == 5


def test_retrieval_by_hand() -> None:
    module = data("retrieval", max_length=400)
    lines = raw_set("retrieval", "absent", standin=True).sources()["test"].read_bytes().splitlines()
    rows = [line.split(b"\t") for line in lines]
    expected = torch.stack([padded([[byte + 1 for byte in row[place]] for row in rows], 400) for place in (3, 4)], 1)
    loader = module.test_dataloader()
    assert torch.equal(joined(loader, "x"), expected)
    assert torch.equal(joined(loader, "padding_mask"), expected != 0)
    assert joined(loader, "y").tolist() == [int(float(row[0])) for row in rows]
    assert module.shape["num_documents"] == 2


def test_image_by_hand() -> None:
    module = data("image", max_length=1024)
    folder = raw_set("image", "absent", standin=True).folder / "cifar-10-batches-py"
    batch = pickle.loads((folder / "test_batch").read_bytes(), encoding="bytes")
    levels = torch.tensor([0.2989, 0.5870, 0.1140]).double() @ torch.tensor(batch[b"data"]).view(-1, 3, 1024).double()
    x = joined(module.test_dataloader(), "x")
    assert (x - levels.mul(255.5 / 255).floor()).abs().max() <= 1
    assert joined(module.test_dataloader(), "y").tolist() == batch[b"labels"]
    assert next(iter(module.test_dataloader()))["padding_mask"] is None


def test_black_pixels() -> None:
    masked = data("pathfinder", max_length=1024, black_pixels="padding")
    batch = next(iter(masked.test_dataloader()))
    assert torch.equal(batch["padding_mask"], batch["x"] != 0)
    assert not batch["padding_mask"].all()
    assert next(iter(data("pathfinder", max_length=1024).test_dataloader()))["padding_mask"] is None


@pytest.mark.parametrize("images", ["generated", "archive"])
def test_pathfinder_in_both_forms(images: Any) -> None:
    module = data("pathfinder", max_length=1024, images=images)
    # The archive's own splits are drawn here: 80, 10 and 10 %.
    assert module.sizes == ({"train": 512, "test": 128} if images == "generated" else {"train": 614, "test": 77})
    y, x = joined(module.test_dataloader(), "y"), joined(module.test_dataloader(), "x")
    assert (x > 0).sum(1)[y == 1].min() > (x > 0).sum(1)[y == 0].max()


def test_brackets_are_two_readings() -> None:
    kept, dropped = data("listops", brackets="kept"), data("listops", brackets="dropped")
    assert kept.checksum != dropped.checksum
    first, second = (joined(module.test_dataloader(), "x")[0] for module in (kept, dropped))
    without = first[first != 15]
    assert torch.equal(second[: len(without)], without)
    assert 15 in first


def test_strict_holds_out_where_there_is_no_development_set() -> None:
    strict = {"selection": "validation", "validation_fraction": 0.25}
    module = data("text", **strict)
    assert module.sizes == {"train": 384, "validation": 128, "test": 128}
    assert joined(module.val_dataloader(), "y").bincount().tolist() == [64, 64]
    rows = {tuple(row) for row in joined(module.train_dataloader(), "x").tolist()}
    held = {tuple(row) for row in joined(module.val_dataloader(), "x").tolist()}
    assert rows | held == {tuple(row) for row in joined(data("text").train_dataloader(), "x").tolist()}
    again = data("text", seed=5, **strict)
    assert torch.equal(joined(again.val_dataloader(), "x"), joined(module.val_dataloader(), "x"))
    other = data("text", split_seed=1, **strict)
    assert not torch.equal(joined(other.val_dataloader(), "x"), joined(module.val_dataloader(), "x"))
    assert data("listops", **strict).sizes == {"train": 512, "validation": 128, "test": 128}


def test_the_last_test_batch() -> None:
    sizes = {
        (batch_size, what): len(
            joined(data("text", batch_size=batch_size, last_test_batch=what).test_dataloader(), "y")
        )
        for batch_size in (48, 64, 200)
        for what in ("kept", "dropped")
    }
    assert sizes == {
        (48, "kept"): 128, (48, "dropped"): 96, (64, "kept"): 128, (64, "dropped"): 128, (200, "kept"): 128,
        (200, "dropped"): 128,
    }  # fmt: skip
    module = data("listops", batch_size=48, last_test_batch="dropped", selection="validation")
    assert len(joined(module.val_dataloader(), "y")) == 128


def test_batches_of_one_length() -> None:
    whole, short = data("text", max_length=1024), data("text", max_length=1024, pad_to="batch")
    widths = [batch["x"].shape[1] for batch in short.test_dataloader()]
    assert widths == sorted(widths)
    assert set(widths) <= {256, 384, 512}
    rows = [tuple(row) for batch in short.test_dataloader() for row in padded(batch["x"].tolist(), 1024).tolist()]
    assert sorted(rows) == sorted(tuple(row) for row in joined(whole.test_dataloader(), "x").tolist())
    for batch, full in zip(short.train_dataloader(), whole.train_dataloader(), strict=True):
        width = batch["x"].shape[1]
        assert torch.equal(batch["x"], full["x"][:, :width])
        assert not full["x"][:, width:].any()


def test_each_process_gets_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    module = data("text", devices=2)
    with pytest.raises(ReattendError, match=r"set up for 2 process\(es\), but 1 run"):
        module.train_dataloader()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        parts.append([batch["x"] for batch in module.train_dataloader()])
    whole = [batch["x"] for batch in _alone(monkeypatch)]
    assert all(torch.equal(torch.cat(pair), one) for pair, one in zip(zip(*parts, strict=True), whole, strict=True))


def _alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    return data("text").train_dataloader()


def test_mistaken_options_are_found_by_name() -> None:
    options = {"dataset": "text", "root": "absent", "batch_size": 2, "seed": 0, "max_length": 8}
    with pytest.raises(ConfigError, match=r"text_byte.*Did you mean 'text_bytes'"):
        build("reattend.data.LRAData", **options, text_byte=3)
    with pytest.raises(ReattendError, match="A global batch of 3 does not divide"):
        data("text", batch_size=3, devices=2)
    with pytest.raises(ReattendError, match="text is not on this machine"):
        data("text", standin=False)
