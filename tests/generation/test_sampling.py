"""Drawing tokens: restrictions of the distribution, and equality with the parallel form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from reattend.attention import MultiHeadAttention
from reattend.backbones import ARDecoder, build_backbone
from reattend.config import compose, read, to_dict
from reattend.data import PixelData
from reattend.data.language.source import vocabulary_of
from reattend.data.samplers import MicroBatch
from reattend.errors import ReattendError
from reattend.generation.command import main
from reattend.generation.sampling import Sampling, continued
from reattend.runs.load import save_model

SHAPE: dict[str, Any] = {"vocabulary": 9, "num_outputs": 9, "max_length": 12, "dim": 8, "depth": 2, "num_heads": 2}


def decoder(kernel: str) -> ARDecoder:
    torch.manual_seed(0)
    model = ARDecoder(lambda spec: MultiHeadAttention(spec, kernel={"name": kernel}), **SHAPE, ff_dim=16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return model.eval()


def drawn(model: ARDecoder, prompt: torch.Tensor, length: int, sampling: Sampling, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(list(continued(model, prompt, length, sampling, generator)), 1)


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
@pytest.mark.parametrize("given", [0, 4])
def test_the_likeliest_tokens_are_those_of_the_parallel_form(kernel: str, given: int) -> None:
    model = decoder(kernel)
    prompt = torch.randint(9, (3, given), generator=torch.Generator().manual_seed(1))
    found = torch.cat([prompt, drawn(model, prompt, 12 - given, Sampling(temperature=0))], 1)
    with torch.no_grad():
        logits = model(found)[0]
    assert torch.equal(logits[:, given:].argmax(-1), found[:, given:])


def test_a_seed_draws_the_same() -> None:
    model, prompt = decoder("softmax"), torch.zeros(2, 0, dtype=torch.int64)
    first, same, other = (drawn(model, prompt, 12, Sampling(), seed) for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_restrictions_keep_the_likeliest() -> None:
    logits = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).log()
    torch.testing.assert_close(Sampling(top_k=2).probabilities(logits).float(), torch.tensor([[5 / 7, 2 / 7, 0, 0, 0]]))
    torch.testing.assert_close(
        Sampling(top_p=0.6).probabilities(logits).float(), torch.tensor([[5 / 7, 2 / 7, 0, 0, 0]])
    )
    torch.testing.assert_close(Sampling(top_p=0.5).probabilities(logits).float(), torch.tensor([[1.0, 0, 0, 0, 0]]))
    torch.testing.assert_close(Sampling().probabilities(logits).float(), logits.exp())
    squared = logits.exp().square()
    torch.testing.assert_close(Sampling(temperature=0.5).probabilities(logits).float(), squared / squared.sum())
    for greedy in (Sampling(temperature=0), Sampling(temperature=1e-40), Sampling(top_p=0), Sampling(top_k=3, top_p=0)):
        assert greedy.probabilities(logits).tolist() == [[1, 0, 0, 0, 0]]
    assert (Sampling(top_k=3).probabilities(torch.zeros(2, 10)) > 0).sum(-1).tolist() == [3, 3]


def test_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().expand(20_000, -1)
    generator = torch.Generator().manual_seed(0)
    counts = torch.multinomial(Sampling().probabilities(logits), 1, generator=generator)[:, 0].bincount(minlength=3)
    torch.testing.assert_close(counts / 20_000, torch.tensor([0.5, 0.3, 0.2]), atol=0.02, rtol=0)


def test_more_tokens_than_places_are_refused() -> None:
    with pytest.raises(ReattendError, match=r"the model has places for 12\. length=8 at most"):
        drawn(decoder("softmax"), torch.zeros(1, 4, dtype=torch.int64), 9, Sampling())
    with pytest.raises(ReattendError, match=r"12 tokens of the prompt and 1 more.*a prompt of 11 at most"):
        drawn(decoder("softmax"), torch.zeros(1, 12, dtype=torch.int64), 1, Sampling())


def saved(folder: Path, task: str, places: int, *overrides: str, vocabulary: int = 256) -> Path:
    small = ["task.dims.dim=8", "task.dims.depth=1", "task.dims.num_heads=2", "attention=linear"]
    config = read(compose([f"task={task}", *small, *overrides]))
    shape = {"vocabulary": vocabulary, "num_outputs": vocabulary, "max_length": places}
    model = build_backbone(config, shape)
    for which in ("last", "best"):
        save_model(folder, which, {"config": to_dict(config), "shape": shape}, model.state_dict())
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return saved(tmp_path / "run", "char_lm/enwik8", 64)


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return saved(tmp_path / "pictures", "image_ar/cifar10", 48, "task.data_options.image_size=4", "data=standin")


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"run={run}", "prompt=" + "a" * 60]) == 0
    assert len(capsys.readouterr().out.encode(errors="replace")) > 60
    arguments = [
        f"run={run}",
        "length=20",
        "batch=2",
        f"seed={10**30}",
        "prompt=12",
        "temperature=0.7",
        "top_p=0.9",
        "top_k=50",
    ]
    assert main(arguments) == 0
    first = capsys.readouterr()
    parts = first.out.removesuffix("\n").split("\n---\n")
    assert len(parts) >= 2
    assert parts[0].startswith("12")
    assert "bytes/s" in first.err
    assert main(arguments) == 0
    assert capsys.readouterr().out == first.out


def test_words_go_on_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = vocabulary_of(read(compose(["task=word_lm/wikitext103", "data=standin"])))
    run = saved(tmp_path / "run", "word_lm/wikitext103", 64, "data=standin", vocabulary=len(words))
    known = words.words[5]
    assert main([f"run={run}", "length=6", f"prompt={known}  {known} unheard-of"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{known} {known} <unk>")
    assert len(words.encode(told.out.removesuffix("\n"))) == 3 + 6
    assert "words/s" in told.err


def test_a_sheet_of_pictures_begins_as_test_images_do(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = pictures.parent / "sheet.png"
    assert main([f"run={pictures}", f"out={out}", "batch=5", "prompt_rows=3"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{out}\n"
    assert "sub-pixels/s" in told.err
    with Image.open(out) as image:
        sheet = np.asarray(image)
    assert sheet.shape == (2 * 100 + 4, 3 * 100 + 4, 3)
    data = PixelData("cifar10", root="nowhere", batch_size=5, seed=0, image_size=4, standin=True)
    whole = data.test[MicroBatch(torch.arange(5), torch.ones(5), 5)]["x"].reshape(5, 4, 4, 3).numpy()
    for number in range(5):
        top, left = 4 + 100 * (number // 3), 4 + 100 * (number % 3)
        found = sheet[top : top + 96, left : left + 96][12::24, 12::24]
        np.testing.assert_array_equal(found[:3], whole[number, :3])
        assert not np.array_equal(found[3], whole[number, 3])
    assert (sheet[104:, 204:] == 255).all(), "the place of a sixth"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "where shall its pictures go? out=FILE.png"),
        (["out=sheet.jpg"], "pictures are written as PNG. out=sheet.png"),
        (["out={tmp}/sheet.png", "prompt_rows=4"], "prompt_rows=3 at most"),
        (["out={tmp}/sheet.png", "prompt_rows=1", "batch=200"], "batch=128 at most"),
        (["out={tmp}/sheet.png", "prompt=a"], "prompt=a: {run} is of image_ar/cifar10"),
        (["out={tmp}/sheet.png", "length=9"], "Its own: out=FILE.png prompt_rows=R"),
    ],
)
def test_mistakes_with_pictures_are_told(
    pictures: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main([f"run={pictures}", *(argument.format(tmp=pictures.parent) for argument in arguments)]) == 2
    assert told.format(run=pictures) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run=nowhere"], "nowhere holds no trained model"),
        (["run={run}", "length=65"], "length=64 at most"),
        (["run={run}", "prompt=" + "a" * 64], "a prompt of 63 at most"),
        (["run={run}", "length=0"], "length"),
        (["run={run}", "temperatur=1"], "Did you mean 'temperature'?"),
        (["run={run}", "which=first"], "holds no model 'first'"),
        (["run={run}", "top_p=2"], "top_p"),
        (["run={run}", "out=text.png"], "which has no such option. Its own: prompt=TEXT length=200"),
        (["run={run}", "temperature=hot"], "temperature: expected float, found 'hot'"),
    ],
)
def test_mistakes_are_told(run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main([argument.format(run=run) for argument in arguments]) == 2
    assert told in capsys.readouterr().err
