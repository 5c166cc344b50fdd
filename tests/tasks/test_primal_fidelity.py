"""Where the code of Primal-Attention differs from its paper: each switch gives both, in the training loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from reattend.attention.primal import Primal
from reattend.backbones import UEAEncoder, build_backbone
from reattend.config import compose, read
from reattend.config.schema import OptimizerConfig, RecipeConfig
from reattend.tasks.classification import Classification

RECIPE = RecipeConfig("small", "", OptimizerConfig("adam", 0.01), "constant", 1, 4, None, 1, 0.0, 0.0)
SHAPE = {"num_channels": 3, "max_length": 11, "num_outputs": 4}
SMALL = [
    "backbone.options.dim=16",
    "backbone.options.depth=3",
    "backbone.options.norm=layer",
    "recipe.dropout=0",
    "recipe.attention_dropout=0",
]
# fidelity=published, then fidelity=corrected
SWITCHES = {
    "primal.multiplier_form": ("square", "exponential"),
    "primal.over_tokens": ("mean", "sum"),
    "layer_losses": ("mean", "sum"),
    "primal.rows": ("all", "real"),
    "primal.loss_tokens": ("all", "real"),
    "primal.square": ("sample", "sample"),
}
CODE, PAPER = ({key: pair[side] for key, pair in SWITCHES.items()} for side in (0, 1))
SWITCHED = [{key: pair[1]} for key, pair in SWITCHES.items() if pair[0] != pair[1]] + [{"primal.square": "batch"}]

x = torch.randn(5, 11, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
mask = torch.arange(11) < torch.tensor([[11], [9], [4], [7], [2]])
y = torch.tensor([0, 1, 2, 3, 0])


def model_of(*overrides: str) -> UEAEncoder:
    torch.manual_seed(0)
    model = build_backbone(read(compose([*SMALL, *overrides])), SHAPE).double()
    assert isinstance(model, UEAEncoder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def training_loss(model: UEAEncoder, eta: float, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """What the task minimises for the batch, without the cross-entropy."""
    strategy = SimpleNamespace(reduce=lambda value, reduce_op: value)
    trainer = SimpleNamespace(world_size=1, accumulate_grad_batches=1, strategy=strategy)
    monkeypatch.setattr(Classification, "trainer", trainer)
    task = Classification(model, num_outputs=4, recipe=RECIPE, seed=0, split="test", loss_weights={"ksvd": eta})
    size = torch.tensor(5.0)
    batch = {"x": x, "padding_mask": mask, "y": y, "weight": torch.ones(5), "global_size": size}
    return task._micro_batch_loss(batch) - torch.nn.functional.cross_entropy(model(x, mask)[0].float(), y)


def objectives(model: UEAEncoder, form: dict[str, str]) -> Tensor:
    """J of each sample and layer, (B, L), from the formulas."""
    seen: list[tuple[Primal, Tensor]] = []
    handles = [
        layer.mixer.register_forward_pre_hook(lambda mixer, inputs: seen.append((mixer, inputs[0])))
        for layer in model.layers
        if isinstance(layer.mixer, Primal)
    ]
    model(x, mask)
    for handle in handles:
        handle.remove()
    return torch.stack([torch.stack([_objective(m, z[b], mask[b], form) for m, z in seen]) for b in range(5)])


def _objective(mixer: Primal, tokens: Tensor, real: Tensor, form: dict[str, str]) -> Tensor:
    source = tokens if form["primal.rows"] == "all" else tokens[real]
    counted = tokens if form["primal.loss_tokens"] == "all" else tokens[real]
    w_e, w_r = mixer.weight_e, mixer.weight_r
    rows = source[torch.linspace(0, len(source) - 1, w_e.shape[1]).int()].unflatten(1, (8, -1))  # (n, H, d)
    queries, keys = (
        torch.nn.functional.normalize(z, dim=-1) for z in mixer.qk(counted).unflatten(1, (2, 8, -1)).unbind(1)
    )
    e, r = (torch.einsum("nhd,thd,hns->ths", rows, z, w) for z, w in ((queries, w_e), (keys, w_r)))
    lam = mixer.multipliers**2 if form["primal.multiplier_form"] == "square" else torch.exp(mixer.multipliers)
    energy = (0.5 * lam * (e**2 + r**2)).sum(2).mean(1)  # of each token, the mean over heads
    trace = torch.einsum("hns,hns->h", w_e, w_r).mean()
    return (energy.mean() if form["primal.over_tokens"] == "mean" else energy.sum()) - trace


def total(objective: Tensor, form: dict[str, str]) -> Tensor:
    """The loss that (B, L) makes."""
    squares = objective.mean(0) ** 2 if form["primal.square"] == "batch" else (objective**2).mean(0)
    return squares.sum() if form["layer_losses"] == "sum" else squares.mean()


@pytest.mark.parametrize("attention", ["primal", "primal_plus"])
@pytest.mark.parametrize("fidelity", ["published", "corrected"])
def test_the_loss_is_that_of_the_code_or_of_the_paper(
    attention: str, fidelity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(f"attention={attention}", f"fidelity={fidelity}")
    form = CODE if fidelity == "published" else PAPER
    objective = objectives(model, form)
    assert objective.shape == (5, 3 if attention == "primal" else 1)
    wanted = 0.3 * total(objective, form)
    torch.testing.assert_close(training_loss(model, 0.3, monkeypatch), wanted.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("switched", SWITCHED, ids=str)
def test_each_switch_alone_changes_the_loss_as_it_says(
    switched: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ((key, value),) = switched.items()
    model = model_of("attention=primal", f"fidelity.{key}={value}")
    form = CODE | switched
    wanted, published = (total(objectives(model, f), f) for f in (form, CODE))
    assert abs(wanted / published - 1) > 0.01
    torch.testing.assert_close(training_loss(model, 1.0, monkeypatch), wanted.float(), rtol=1e-5, atol=1e-6)
