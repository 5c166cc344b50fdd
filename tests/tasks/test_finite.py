"""Naming the module in which numbers first stop being finite."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reattend.tasks.finite import first_nonfinite_gradient, first_nonfinite_module


class Reciprocal(nn.Module):
    """1 / x."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 / x


def test_names_the_first_module_in_order_of_execution() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Identity(), Reciprocal()), nn.Linear(2, 2))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    assert first_nonfinite_module(model, lambda: model(torch.ones(1, 2))) == "1.1 (Reciprocal)"


def test_says_when_the_modules_own_parameters_are_to_blame() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.data[0, 0] = torch.nan
    assert first_nonfinite_module(model, lambda: model(torch.ones(1, 2))).endswith("whose parameters are not finite")


def test_says_when_no_module_is_to_blame_and_leaves_no_hooks() -> None:
    model = nn.Linear(2, 2)
    assert "the loss itself" in first_nonfinite_module(model, lambda: model(torch.ones(1, 2)))
    assert not model._forward_hooks


def test_names_the_parameter_nearest_to_the_loss() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model[0].weight.grad[0, 0] = torch.inf  # type: ignore[index]
    model[1].weight.grad[0, 0] = torch.inf  # type: ignore[index]
    assert first_nonfinite_gradient(model) == "the gradient of 1.weight"
