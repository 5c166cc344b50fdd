"""A run's configuration as nested dictionaries, built from the schema itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from reattend.config.schema import (
    AttentionConfig,
    BackboneConfig,
    BetaConfig,
    DataConfig,
    FidelityConfig,
    LauncherConfig,
    LoggerConfig,
    OptimizerConfig,
    ProtocolConfig,
    PublishedValue,
    RecipeConfig,
    RunConfig,
    ScaleConfig,
    ScalesConfig,
    TaskConfig,
    TrainerConfig,
    WindowConfig,
)

SOFTMAX = AttentionConfig("softmax", "softmax", "a paper", "pkg.Attention", {"kernel": {"name": "softmax"}})
BN = AttentionConfig(
    "bn", "recentred", "a paper", "pkg.Attention", {"kernel": {"name": "softmax"}, "recenter": {"beta": 0.3}}
)
LAYERS = AttentionConfig(
    "layers", "mixed", "us", "pkg.Layered", default="softmax", at={-1: "bn"}, parts={"softmax": SOFTMAX, "bn": BN}
)


def example(attention: AttentionConfig = BN) -> dict[str, Any]:
    """A complete configuration."""
    run = RunConfig(
        seed=3,
        attention=attention,
        beta=BetaConfig("published", 0.3, "a paper", learnable=False, std=False),
        scales=ScalesConfig("published", [1, 2], "assumed"),
        window=WindowConfig("none", None, "chosen"),
        backbone=BackboneConfig("encoder", "an encoder", "code", "pkg.Encoder", {"dim": 8, "norm": "batch"}),
        recipe=RecipeConfig("mvts", "code", OptimizerConfig("radam", 1e-3), "constant", 400, 64, 4.0, 2, 0.1, 0.1),
        task=TaskConfig(
            "uea/vowels", "vowels", "archive", "pkg.Task", "pkg.Data", "Vowels", "accuracy", {"dim": 8}, "code", 1e-3,
            {"scales": PublishedValue([1, 2], "a paper")}, {"epochs": 20},
        ),
        fidelity=FidelityConfig("published", "all"),
        protocol=ProtocolConfig("published", "test", 0.0, 0),
        scale=ScaleConfig("paper"),
        data=DataConfig("real", "data"),
        trainer=TrainerConfig("auto", "auto", 1, "auto", "32-true", 1, None, True, False, 30.0),
        logger=LoggerConfig("csv"),
        launcher=LauncherConfig("local"),
        compile=False,
        rerun=False,
        outputs="outputs",
    )  # fmt: skip
    return asdict(run)
