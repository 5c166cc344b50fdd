from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import reattend
from reattend.errors import ReattendError
from reattend.runs.load import save_model

from .processes import SOURCE

SHAPE = {"num_channels": 3, "max_length": 11, "num_outputs": 4}


@pytest.fixture(scope="module", params=["bn_sh", "layers"])
def run(request: pytest.FixtureRequest) -> Any:
    from reattend.config import compose, read

    more = {"layers": ["attention.default=linear", "attention.at={-1: bn}"]}
    return read(compose([f"attention={request.param}", *more.get(request.param, [])]))


@pytest.fixture(scope="module")
def trained(run: Any) -> nn.Module:
    from reattend.backbones import build_backbone

    model = build_backbone(run, SHAPE)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model.eval()


@pytest.fixture
def folder(tmp_path: Path, run: Any, trained: nn.Module) -> Path:
    from reattend.config import to_dict

    save_model(tmp_path, "last", {"config": to_dict(run), "shape": SHAPE}, trained.state_dict())
    return tmp_path


def test_the_loaded_model_computes_the_same(folder: Path, trained: nn.Module) -> None:
    model = reattend.load(folder)
    assert not model.training
    x = torch.randn(2, 11, 3)
    mask = torch.arange(11) < torch.tensor([[11], [6]])
    with torch.no_grad():
        assert torch.equal(model(x, mask)[0], trained(x, mask)[0])


def test_the_best_is_another_file(folder: Path, run: Any, trained: nn.Module) -> None:
    from reattend.config import to_dict

    zero = {name: torch.zeros_like(value) for name, value in trained.state_dict().items()}
    save_model(folder, "best", {"config": to_dict(run), "shape": SHAPE}, zero)
    assert all(not parameter.any() for parameter in reattend.load(folder, "best").parameters())
    assert any(parameter.any() for parameter in reattend.load(folder).parameters())


def test_unknown_or_missing_models_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"no model 'lst', only: last\. Did you mean 'last'\?"):
        reattend.load(folder, "lst")
    with pytest.raises(ReattendError, match=r"holds no trained model\. "):
        reattend.load(tmp_path / "nothing")
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "result.json").write_text("{}")
    with pytest.raises(ReattendError, match=r"holds no trained model, only what scripts/runs\.py export keeps"):
        reattend.load(exported)


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    torch.save({"weight": torch.zeros(1)}, folder / "model_last.pt")
    with pytest.raises(ReattendError, match=r"model_last\.pt does not fit the model"):
        reattend.load(folder)


@pytest.mark.parametrize("name", ["model_last.pt", "model.json"])
def test_damaged_files_are_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ReattendError, match=f"{name} is cut off"):
        reattend.load(folder)


def test_a_foreign_description_is_named(folder: Path) -> None:
    (folder / "model.json").write_text("{}")
    with pytest.raises(ReattendError, match="describes no model"):
        reattend.load(folder)


def test_importing_reattend_does_not_import_torch() -> None:
    code = "import sys, reattend; assert 'torch' not in sys.modules; assert callable(reattend.load)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": SOURCE})


def test_unknown_attributes_are_still_unknown() -> None:
    with pytest.raises(AttributeError, match="lod"):
        _ = reattend.lod
