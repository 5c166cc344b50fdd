"""The command `scripts/inspect_run.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch

from reattend.analysis.biases import learned_biases
from reattend.analysis.command import VIEWS, Inspected, Options, inspect, main
from reattend.analysis.image_maps import relative_maps
from reattend.attention import MultiHeadAttention
from reattend.backbones import VisionTransformer, build_backbone
from reattend.config import compose, read, to_dict
from reattend.errors import ReattendError
from reattend.runs.load import save_model

SHAPE = {"num_channels": 3, "max_length": 11, "num_outputs": 4}
SMALL = ["backbone.options.dim=8", "backbone.options.num_heads=2", "backbone.options.depth=2"]


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Path]:
    """Writes the models of a run, as a finished run does."""

    def save(attention: str, *overrides: str) -> Path:
        config = read(compose([f"attention={attention}", *SMALL, *overrides]))
        folder = tmp_path / "runs" / attention / "s0-0123456789ab"
        model = build_backbone(config, SHAPE)
        zero = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        for which, weights in (("last", model.state_dict()), ("best", zero)):
            save_model(folder, which, {"config": to_dict(config), "shape": SHAPE}, weights)
        return folder

    return save


@pytest.mark.parametrize(("attention", "which"), [("aft_conv", "last"), ("layers", "best")])
def test_a_picture_of_each_kind_of_bias(
    trained: Callable[..., Path], tmp_path: Path, attention: str, which: str
) -> None:
    mixed = ["attention.default=aft_local", "attention.at={-1: softmax}"]
    folder = trained(attention, *(mixed if attention == "layers" else []))
    out = tmp_path / "new" / "picture.svg"
    arguments = [f"run={folder}", "show=biases", f"out={out}", f"which={which}"]
    assert main(arguments) == 0
    first = out.read_bytes()
    assert b"<svg" in first
    assert main(arguments) == 0
    assert out.read_bytes() == first


def test_the_weights_are_those_that_were_asked_for(trained: Callable[..., Path]) -> None:
    folder = trained("aft_full")
    last, best = (learned_biases(inspect(folder, which).model)[0].values for which in ("last", "best"))
    assert np.abs(last).max() > 0
    assert np.abs(best).max() == 0


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("SVG", b"<?xml")])
def test_the_ending_says_the_format(trained: Callable[..., Path], tmp_path: Path, ending: str, magic: bytes) -> None:
    out = tmp_path / f"picture.{ending}"
    assert main([f"run={trained('aft_full')}", "show=biases", f"out={out}"]) == 0
    assert out.read_bytes().startswith(magic)


@pytest.mark.parametrize("attention", ["softmax", "aft_simple"])
def test_a_run_without_biases_is_refused_by_name(
    trained: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], attention: str
) -> None:
    out = tmp_path / "a.svg"
    assert main([f"run={trained(attention)}", "show=biases", f"out={out}"]) == 2
    assert f"attention={attention} learns no position biases; aft_full" in capsys.readouterr().err
    assert not out.exists()


def test_a_wrong_folder_is_answered_with_the_nearest_run(
    trained: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained("aft_full")
    more = ["show=biases", f"out={tmp_path / 'a.svg'}"]
    assert main([f"run={folder.with_name('s0-0123456789ac')}", *more]) == 2
    assert f"Did you mean '{folder}'?" in capsys.readouterr().err
    assert main([f"run={folder.parent}", *more]) == 2
    assert str(folder) in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["run=elsewhere", *more]) == 2
    assert "There is none near it" in capsys.readouterr().err
    (tmp_path / "outputs").mkdir()
    (tmp_path / "runs").rename(tmp_path / "outputs" / "runs")
    assert main(["run=outputs/run/aft_full/s0-0123456789ab", *more]) == 2
    assert "Did you mean 'outputs/runs/aft_full/s0-0123456789ab'?" in capsys.readouterr().err


def test_files_that_are_no_images_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"image_size": 12, "patch_size": 4, "num_outputs": 2, "dim": 8, "depth": 1, "num_heads": 2}
    model = VisionTransformer(MultiHeadAttention, **shape).eval()
    x = torch.randn(7, 3, 12, 12)
    good = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])
    batches = [{"x": x[rows], "weight": good[rows]} for rows in (slice(0, 3), slice(3, 6), slice(6, 7))]
    monkeypatch.setattr("reattend.analysis.command.from_dict", lambda config: config)
    monkeypatch.setattr(
        "reattend.analysis.command.build_data", lambda config: SimpleNamespace(test_dataloader=lambda: batches)
    )
    run = Inspected(model, {}, "")
    options = Options("", "relative_maps", Path("a.svg"))
    shown = [axes.images[0].get_array() for axes in VIEWS["relative_maps"](run, options).axes]
    (expected,) = relative_maps(model, [x[good > 0]])
    np.testing.assert_allclose(np.stack(shown), expected.values, rtol=1e-5)
    with pytest.raises(ReattendError, match="image=1: that file is no whole image, as is said above"):
        VIEWS["maps"](run, replace(options, image=1))
    assert VIEWS["maps"](run, replace(options, image=2))


def test_a_model_of_timm_sees_images_normalised_as_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"img_size": 32, "embed_dim": 24, "depth": 1, "num_heads": 2}
    theirs = {name: timm.create_model(name, **small) for name in ("deit_tiny_patch16_224", "vit_tiny_patch16_224")}
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: theirs[name])
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(
        "reattend.analysis.command.relative_maps",
        lambda model, batches: relative_maps(model, [seen.append(images) or images for images in batches]),
    )
    for name in theirs:
        data = ["task=imagenet/deit_tiny", "data=standin", "scale=quick", "task.data_options.image_size=32"]
        out = tmp_path / f"{name}.svg"
        assert (
            main(
                [f"run=timm:{name}", *data, "trainer.loader_workers=0", "images=4", "show=relative_maps", f"out={out}"]
            )
            == 0
        )
        assert out.is_file()
    for more, told in (
        (
            ["task=image/fashion_mnist"],
            "patches of 16 pixels, which do not divide images of 28: task.data_options.image_size=32",
        ),
        (["task=uea/japanese_vowels"], "uea/japanese_vowels has no images"),
    ):
        assert main(["run=timm:deit_tiny_patch16_224", *more, "data=standin", "show=maps", f"out={out}"]) == 2
        assert told in capsys.readouterr().err
    pixels = [
        (
            images.permute(0, 2, 3, 1) * torch.tensor(theirs[name].pretrained_cfg["std"])
            + torch.tensor(theirs[name].pretrained_cfg["mean"])
        )
        * 255
        for name, images in zip(theirs, seen, strict=True)
    ]
    assert theirs["vit_tiny_patch16_224"].pretrained_cfg["mean"] == (0.5, 0.5, 0.5)
    torch.testing.assert_close(pixels[0], pixels[0].round(), atol=1e-3, rtol=0)
    torch.testing.assert_close(pixels[0], pixels[1], atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show=bias", "out=a.svg"], "Did you mean 'biases'?"),
        (["show=biases", "out=a.jpg"], ".svg"),
        (["show=biases", "out=a.svg", "wich=best"], "Did you mean 'which'?"),
        (["show=biases", "out=a.svg", "which=first"], "which"),
        (["show=biases", "out=a.svg", "attention.options.bias_rank=3"], "a finished run is shown as it is"),
        (["show=biases"], "out"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main([f"run={tmp_path}", *arguments]) == 2
    assert told in capsys.readouterr().err
