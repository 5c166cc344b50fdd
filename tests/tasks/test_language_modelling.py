"""Prediction of the next token: means over tokens, in the units that tables have."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reattend.config.schema import OptimizerConfig, RecipeConfig
from reattend.data.language.blocks import IGNORED
from reattend.tasks import ByteModelling, LanguageModelling, PixelModelling, WordModelling

RECIPE = RecipeConfig("small", "", OptimizerConfig("adam", 0.01), "constant", 1, 4, None, 1, 0.0, 0.0)
logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
y = torch.tensor([[0, 1, 2, 3, 4], [6, 6, IGNORED, IGNORED, IGNORED], [IGNORED, IGNORED, IGNORED, 5, 0]])


def task(kind: type[LanguageModelling]) -> LanguageModelling:
    return kind(nn.Identity(), num_outputs=7, recipe=RECIPE, seed=0, split="val", loss_weights={})


def token_losses() -> list[torch.Tensor]:
    return [F.cross_entropy(logits[b, n], y[b, n]) for b in range(3) for n in range(5) if y[b, n] != IGNORED]


def test_a_sequences_loss_is_the_mean_over_its_targets() -> None:
    found = task(ByteModelling).losses(logits, y)
    expected = torch.stack(
        [torch.stack(part).mean() for part in (token_losses()[:5], token_losses()[5:7], token_losses()[7:])]
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("kind", "name", "of_nats"),
    [
        (ByteModelling, "bits_per_char", lambda nats: nats / math.log(2)),
        (PixelModelling, "bits_per_dim", lambda nats: nats / math.log(2)),
        (WordModelling, "perplexity", math.exp),
    ],
)
def test_metrics_count_every_token_alike(kind: type[LanguageModelling], name: str, of_nats: object) -> None:
    metrics = task(kind).make_metrics()
    metrics.update(logits[:2], y[:2])
    metrics.update(logits[2:], y[2:])
    nats = torch.stack(token_losses()).mean().item()
    found = metrics.compute()
    assert found["loss"].item() == pytest.approx(nats)
    assert found[name].item() == pytest.approx(of_nats(nats))  # type: ignore[operator]
    assert set(found) == set(kind.higher_is_better)


@pytest.mark.parametrize(
    ("kind", "name", "of_nats"),
    [(ByteModelling, "bits_per_char", lambda nats: nats / math.log(2)), (WordModelling, "perplexity", math.exp)],
)
def test_training_reports_the_cross_entropy_of_all_updates_without_fillers_and_mixer_losses(
    kind: type[LanguageModelling], name: str, of_nats: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, padding_mask: None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return x, {"ksvd": torch.full((len(x),), 100.0), "ksvd/J/0": torch.full((len(x),), 5.0)}

    strategy = SimpleNamespace(reduce=lambda value, reduce_op: value)
    trainer = SimpleNamespace(world_size=1, accumulate_grad_batches=1, strategy=strategy)
    monkeypatch.setattr(kind, "trainer", trainer)
    training = kind(Model(), num_outputs=7, recipe=RECIPE, seed=0, split="val", loss_weights={})
    for rows, weight in ((slice(2), [1.0, 1.0]), (slice(1, 3), [0.0, 1.0])):
        batch = {"x": logits[rows], "padding_mask": None, "y": y[rows], "weight": torch.tensor(weight)}
        training._micro_batch_loss(batch | {"global_size": 2})
    nats = training.losses(logits, y).mean().item()
    found = training.take_measurements()
    assert found == {name: pytest.approx(of_nats(nats)), "ksvd/J/0": 5.0}
    assert {"loss", name} == set(kind.training_metrics())


def test_a_uniform_guess_of_256_levels_is_8_bits() -> None:
    metrics = task(PixelModelling).make_metrics()
    metrics.update(torch.zeros(2, 9, 256), torch.randint(256, (2, 9)))
    assert metrics.compute()["bits_per_dim"].item() == pytest.approx(8)
