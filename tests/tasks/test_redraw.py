"""Random features are redrawn by the training task, and an interrupted training draws the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.config.schema import OptimizerConfig, RecipeConfig
from reattend.tasks.classification import Classification

RECIPE = RecipeConfig("small", "", OptimizerConfig("adam", 0.01), "constant", 1, 4, None, 1, 0.0, 0.0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        feature_map = {"name": "performer", "redraw_interval": 2}
        spec = MixerSpec(8, 2, 5)
        self.mixers = nn.ModuleList(
            MultiHeadAttention(spec, kernel={"name": "linear", "feature_map": feature_map}) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        self.seen.append(torch.stack([mixer.kernel.feature_map.matrix.clone() for mixer in self.mixers]))
        for mixer in self.mixers:
            x = x + mixer(x, padding_mask)
        return self.head(x.mean(1)), {}


def make_task(seed: int = 0) -> Classification:
    torch.manual_seed(seed)
    return Classification(Model(), num_outputs=3, recipe=RECIPE, seed=0, split="test", loss_weights={})


def batches() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    samples = [
        {
            "x": torch.randn(2, 5, 8, generator=generator),
            "padding_mask": torch.ones(2, 5, dtype=torch.bool),
            "y": torch.randint(3, (2,), generator=generator),
            "weight": torch.ones(2),
            "global_size": torch.tensor(4.0),
        }
        for _ in range(16)
    ]
    return DataLoader(samples, batch_size=None)  # type: ignore[arg-type]


def train(task: Classification, folder: Path, steps: int, checkpoint: Path | None = None) -> None:
    trainer = pl.Trainer(
        max_steps=steps,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, batches(), ckpt_path=checkpoint, weights_only=False)
    trainer.save_checkpoint(folder / "end.ckpt")


@pytest.mark.filterwarnings("ignore")
def test_each_optimiser_step_has_its_matrix_and_a_resumed_training_the_same(tmp_path: Path) -> None:
    whole = make_task()
    train(whole, tmp_path, 7)
    seen = whole.model.seen
    assert len(seen) == 14
    # Two micro-batches a step, a new matrix every two steps, other ones in every layer.
    assert all(torch.equal(seen[batch], seen[batch // 4 * 4]) for batch in range(14))
    assert len({matrices.sum().item() for matrices in seen}) == 4
    assert not torch.equal(seen[0][0], seen[0][1])

    train(make_task(), tmp_path, 3)
    resumed = make_task(seed=1)
    train(resumed, tmp_path, 7, tmp_path / "end.ckpt")
    assert len(resumed.model.seen) == 8
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.seen, seen[6:], strict=True))
