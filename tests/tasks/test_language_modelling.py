"""Prediction of the next token: means over tokens, in the units that tables have."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reattend.config import compose, read
from reattend.config.schema import OptimizerConfig, RecipeConfig
from reattend.data.language.blocks import IGNORED
from reattend.tasks import ByteModelling, LanguageModelling, PixelModelling, WordModelling
from reattend.train.execute import build_data, build_model

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


def test_a_uniform_guess_of_256_levels_is_8_bits() -> None:
    metrics = task(PixelModelling).make_metrics()
    metrics.update(torch.zeros(2, 9, 256), torch.randint(256, (2, 9)))
    assert metrics.compute()["bits_per_dim"].item() == pytest.approx(8)


def test_training_reports_its_own_batches_in_the_units_of_the_task() -> None:
    learner = task(ByteModelling)
    learner.train_loss.update(9.0)
    for rows in (slice(0, 2), slice(2, 3)):
        found = learner.losses(logits[rows], y[rows])
        learner.watch(found, torch.ones(len(found)))
    learner.watch(torch.tensor([99.0]), torch.zeros(1))  # a filler
    nats = task(ByteModelling).losses(logits, y).mean().item()
    assert learner.take_train_metrics() == {"loss": 9.0, "bits_per_char": pytest.approx(nats / math.log(2))}
    learner.watch(torch.tensor([1.0]), torch.ones(1))
    learner.train_loss.update(1.0)
    assert learner.take_train_metrics()["bits_per_char"] == pytest.approx(1 / math.log(2))


@pytest.mark.parametrize("backbone", ["ar_decoder", "transformer_lm"])
@pytest.mark.parametrize("name", ["char_lm/enwik8", "word_lm/wikitext103", "image_ar/cifar10"])
def test_no_decoder_sees_a_target_of_any_data(name: str, backbone: str) -> None:
    small = ["data=standin", "scale=quick", "scale.dim=16", "scale.depth=1", "attention=linear"]
    config = read(compose([f"task={name}", f"backbone={backbone}", *small]))
    data = build_data(config)
    model = build_model(config, data.shape)[0].eval()
    batch = next(iter(data.test_dataloader()))
    told = batch["x"][:1]
    # Where the token lies in x that is the target at place 10.
    place = 11 if "start_token" in data.shape else 10
    assert told[0, place] == batch["y"][0, 10]
    changed = told.clone()
    changed[0, place] = (changed[0, place] + 1) % data.shape["vocabulary"]
    with torch.no_grad():
        differs = (model(told)[0] != model(changed)[0]).any(-1)[0]
    assert differs.nonzero()[0] == 11
