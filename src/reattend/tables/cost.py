"""What a run of a table will cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reattend.config.revisions import own_code
from reattend.config.schema import RunConfig
from reattend.data.facts import check_enough, data_facts

if TYPE_CHECKING:
    from reattend.efficiency.model_cost import ModelCost

_FLOAT = 4  # bytes
_OF_THE_LOSS = 3  # of the outputs' size: the logarithms that a cross-entropy keeps, and two gradients
_GRADIENT_AND_MOMENTS = 3  # floats beside each weight: its gradient, and two moments of the optimiser
_MODEL_FILES, _CHECKPOINT = 3, 3  # last and best weights, the best in the checkpoint; weights and moments in it


@dataclass(frozen=True)
class RunCost:
    """Of one run.

    Attributes:
        steps: updates.
        parameters: of the model.
        flops: of all training and evaluation.
        modules: leaf modules, as of a `ModelCost`.
        memory: bytes on a device at the peak, without torch itself; an estimate.
        disk: bytes of the run's folder; an estimate.
    """

    steps: int
    parameters: int
    flops: int
    modules: int
    memory: int
    disk: int


def run_cost(config: RunConfig) -> RunCost:
    """Counts on the shapes of the model and the sizes of the data; most data is not read.

    Nothing is computed, but for one sample where a part is a user's own, which may look at values. Memory is that of
    weights, gradients, moments and what a micro-batch keeps for the backward pass and in the loss.

    Raises:
        ReattendError: the model cannot be built, or the data is not known without its files, which are missing.
    """
    # Imported here: a plan that was made before needs no torch.
    import torch

    from reattend.backbones import build_backbone
    from reattend.efficiency.model_cost import model_cost

    facts = data_facts(config)
    check_enough(config, facts.sizes["train"])
    compute = bool(own_code(config))
    with torch.device("cpu" if compute else "meta"):
        model = build_backbone(config, facts.shape)
    cost = model_cost(model, model.example, compute)  # type: ignore[arg-type]
    return _of(config, cost, facts.sizes)


def _of(config: RunConfig, cost: ModelCost, sizes: Mapping[str, int]) -> RunCost:
    recipe, trainer = config.recipe, config.trainer
    train = sizes["train"]
    # What selects the epoch is evaluated as often as training stops for it; the last and the best model once on test.
    evaluations = math.ceil(recipe.epochs / recipe.eval_every_epochs)
    evaluated = evaluations * (sizes["validation"] or sizes["test"]) + 2 * sizes["test"]
    batch = math.ceil(min(recipe.batch_size, train) / (trainer.devices * trainer.accumulation))
    return RunCost(
        steps=recipe.steps(train),
        parameters=cost.parameters,
        flops=recipe.samples(train) * cost.training_flops + evaluated * cost.flops,
        modules=cost.modules,
        memory=_FLOAT * cost.parameters * (1 + _GRADIENT_AND_MOMENTS)
        + batch * (cost.activations + _OF_THE_LOSS * cost.outputs),
        disk=_FLOAT * cost.parameters * (_MODEL_FILES + _CHECKPOINT),
    )
