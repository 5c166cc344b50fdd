"""Weights that a vision transformer starts from: which are taken, which not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import timm
import torch
from safetensors.torch import save_file

from reattend.attention import MultiHeadAttention
from reattend.attention.aft.conv import AFTConv
from reattend.backbones import VisionTransformer
from reattend.backbones.pretrained import PARTS, ROWS, read_weights, revision, start_from
from reattend.backbones.timm_models import model_of_timm
from reattend.config.schema import PretrainedPart
from reattend.errors import ReattendError

SHAPE: dict[str, Any] = {"image_size": 32, "num_outputs": 7, "dim": 24, "depth": 2, "num_heads": 4}
LEAVE = ["positions", "class_token", "query", "key"]


def deit(**options: Any) -> torch.nn.Module:
    """timm's own."""
    shape = {"img_size": 32, "num_classes": 7, "embed_dim": 24, "depth": 2, "num_heads": 4} | options
    return timm.create_model("deit_tiny_patch16_224", **shape)


def saved(tmp_path: Path, **options: Any) -> tuple[str, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    state = {name: torch.randn_like(value) for name, value in deit(**options).state_dict().items()}
    torch.save({"model": state}, tmp_path / "deit.pth")
    return str(tmp_path / "deit.pth"), state


def test_all_of_timms_weights_are_taken(tmp_path: Path) -> None:
    path, state = saved(tmp_path)
    model = VisionTransformer(MultiHeadAttention, **SHAPE)
    start = start_from(model, path, [], 4)
    assert start.anew == start.unused == []
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name])


def test_aft_conv_takes_all_but_positions_class_token_query_and_key(tmp_path: Path) -> None:
    path, state = saved(tmp_path)
    torch.manual_seed(2)
    model = VisionTransformer(
        lambda spec: AFTConv(spec, kernel_size=3, num_filters=6), **SHAPE, pooling="mean", positions="none"
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    start = start_from(model, path, LEAVE, 4)
    after = model.state_dict()
    qkv = "blocks.1.attn.qkv.weight"
    torch.testing.assert_close(after[qkv][-24:], state[qkv][-24:])
    torch.testing.assert_close(after[qkv][:-24], before[qkv][:-24])
    torch.testing.assert_close(after["blocks.1.attn.proj.weight"], state["blocks.1.attn.proj.weight"])
    torch.testing.assert_close(after["head.weight"], state["head.weight"])
    own = {f"blocks.{block}.attn.{name}" for block in (0, 1) for name in ("weight", "gamma", "beta")}
    rows = {f"blocks.{b}.attn.qkv.{p}[{r}]" for b in (0, 1) for p in ("weight", "bias") for r in ("query", "key")}
    assert set(start.anew) == own | rows
    assert set(start.unused) == {"pos_embed", "cls_token"}
    told = str(start)
    assert "blocks.0-1.attn.qkv.weight[value]" in told
    assert "anew (14): " in told


def test_positions_of_a_smaller_image_are_resampled(tmp_path: Path) -> None:
    path, state = saved(tmp_path)
    model = VisionTransformer(MultiHeadAttention, **(SHAPE | {"image_size": 64}))
    start = start_from(model, path, [], 4)
    assert "pos_embed" in start.taken
    torch.testing.assert_close(model.pos_embed[:, :1], state["pos_embed"][:, :1])
    assert model.pos_embed.shape[1] == 17


def test_another_number_of_classes_starts_a_new_head(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, num_classes=9)
    start = start_from(VisionTransformer(MultiHeadAttention, **SHAPE), path, [], 4)
    assert start.anew == ["head.weight", "head.bias"]


def test_a_file_has_no_number_of_heads_which_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = saved(tmp_path)
    told = "heads cannot be told from a file: 4 assumed, as the model has"
    assert str(start_from(VisionTransformer(MultiHeadAttention, **SHAPE), path, [], 4)).count(told) == 1
    # Nothing that depends on heads is taken, or their number is known.
    assert told not in str(start_from(VisionTransformer(MultiHeadAttention, **SHAPE), path, ["query", "key"], 4))
    theirs = deit()
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: theirs)
    known = start_from(VisionTransformer(MultiHeadAttention, **SHAPE), "timm:deit_tiny_patch16_224", [], 4)
    assert told not in str(known)


def test_a_model_of_timm_with_other_functions_under_the_same_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"deit_tiny_patch16_224": deit(), "deit_small_patch16_224": deit(act_layer="relu")}
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: theirs[name])
    x = torch.randn(2, 3, 32, 32)
    own = model_of_timm("deit_tiny_patch16_224")
    torch.testing.assert_close(own(x)[0], theirs["deit_tiny_patch16_224"](x))
    with pytest.raises(ReattendError, match="timm:deit_small_patch16_224 is no plain vision transformer"):
        model_of_timm("deit_small_patch16_224")


def test_every_form_gives_the_same(tmp_path: Path) -> None:
    path, state = saved(tmp_path)
    save_file(state, tmp_path / "deit.safetensors")
    torch.save(state, tmp_path / "plain.pt")
    for file in (path, tmp_path / "deit.safetensors", tmp_path / "plain.pt"):
        read = read_weights(str(file)).state
        assert read.keys() == state.keys()
        assert all(torch.equal(read[name], state[name]) for name in state)


def test_the_revision_is_that_of_the_content(tmp_path: Path) -> None:
    path, state = saved(tmp_path)
    first = revision(path)
    Path(path).rename(tmp_path / "moved.pth")
    assert revision(str(tmp_path / "moved.pth")) == first
    torch.save({"model": {name: value + 1 for name, value in state.items()}}, path)
    assert revision(path) != first
    assert revision("timm:deit_tiny_patch16_224") != revision("timm:deit_small_patch16_224")
    with pytest.raises(ReattendError, match="timm has no weights 'no' of deit_tiny_patch16_224"):
        revision("timm:deit_tiny_patch16_224.no")  # before data is read


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ("nowhere.pth", "there is no such file or folder"),
        ("timm:deit_tyni_patch16_224", "timm has no such model. Did you mean 'deit_tiny_patch16_224'?"),
        ("timm:", "timm has no such model. Name one, such as timm:deit_tiny_patch16_224.fb_in1k. All: python -c"),
        (
            "timm:deit_tiny_patch16_224.fb_in1",
            "timm has no weights 'fb_in1' of deit_tiny_patch16_224. Did you mean 'fb_in1k'? It has: "
            "timm:deit_tiny_patch16_224.fb_in1k.",
        ),
        (
            "timm:vit_small_patch16_36x1_224",
            "timm has no weights of vit_small_patch16_36x1_224. Did you mean 'vit_small_patch16",
        ),
        ("timm:deit_tiny_patch16_224", "timm could not get the weights (OSError). On a machine with a network: python"),
        ("text.pth", "text.pth is cut off, or was not written by torch.save"),
        ("text.safetensors", "text.safetensors cannot be read"),
        ("text.onnx", "is no .safetensors, .pth or .pt file"),
        ("list.pth", "list.pth holds no weights by name"),
    ],
)
def test_what_is_not_there_or_not_readable_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text.pth", "text.safetensors", "text.onnx"):
        Path(name).write_text("text")
    torch.save([1, 2], "list.pth")

    def offline(name: str, pretrained: bool) -> None:
        raise OSError

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(ReattendError) as refused:
        read_weights(weights)
    assert told in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_other_widths_and_other_heads_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = saved(tmp_path, embed_dim=32)
    model = VisionTransformer(MultiHeadAttention, **SHAPE)
    with pytest.raises(ReattendError, match=r"nothing of .* fits the model"):
        start_from(model, path, ["head"], 4)
    theirs = deit(num_heads=3)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: theirs)
    with pytest.raises(ReattendError, match=r"are of 3 heads, the model has 4.*num_heads=3"):
        start_from(model, "timm:deit_tiny_patch16_224", [], 4)
    assert "blocks.0.attn.proj.weight" in start_from(model, "timm:deit_tiny_patch16_224", ["query", "key"], 4).taken


def test_each_part_that_can_be_left_is_known() -> None:
    assert {*ROWS, *PARTS} == set(get_args(PretrainedPart))


@pytest.mark.parametrize("options", [{"num_filters": 3}, {"query_activation": "none"}])
def test_an_attention_of_other_widths_takes_all_of_its_own(tmp_path: Path, options: dict[str, Any]) -> None:
    def make() -> VisionTransformer:
        return VisionTransformer(lambda spec: AFTConv(spec, kernel_size=3, **options), **SHAPE, pooling="mean")

    model, other = make(), make()
    torch.save(model.state_dict(), tmp_path / "own.pt")
    start = start_from(other, str(tmp_path / "own.pt"), [], 4)
    assert start.anew == []
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_positions_with_another_class_token_start_anew(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    model = VisionTransformer(MultiHeadAttention, **SHAPE, pooling="mean")
    assert start_from(model, path, [], 4).anew == ["pos_embed"]


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="this is no folder of a finished run"):
        read_weights(str(tmp_path))
