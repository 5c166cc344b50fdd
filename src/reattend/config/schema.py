"""The typed form of a run's configuration: what every YAML group must say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reattend.config.limits import (
    BatchSize,
    Count,
    Dimension,
    Epochs,
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    Share,
    Threads,
)


@dataclass(frozen=True)
class AttentionConfig:
    """One mechanism: the mixer class and its options.

    `loss_weights` are the factors of the mixers' own losses by name, and `layer_losses` says what backbones make of
    losses of one name. Only a mechanism that is composed by layers has
    `default`, `at` and `last` (names of other mechanisms; `last` gives how many of the last layers have one),
    `part_options` (options of theirs that are to be other than in their files) and `parts` (those, resolved).
    """

    name: str
    summary: str
    source: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    loss_weights: Mapping[str, NonNegative] = field(default_factory=dict)
    layer_losses: Literal["mean", "sum"] = "mean"
    default: str | None = None
    at: Mapping[int, str] = field(default_factory=dict)
    last: Mapping[str, Count] = field(default_factory=dict)
    part_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parts: Mapping[str, AttentionConfig] = field(default_factory=dict)


@dataclass(frozen=True)
class BetaConfig:
    """Weight of the key mean in Attention-BN (primal-dual paper, Eqn 26); `std` divides as well (Eqn 22)."""

    name: str
    value: float
    source: str
    learnable: bool
    std: bool


@dataclass(frozen=True)
class ScalesConfig:
    """Downsampling factor of keys and values, one per head; None leaves all heads intact."""

    name: str
    value: list[Count] | None
    source: str


@dataclass(frozen=True)
class WindowConfig:
    """Window of local mechanisms in tokens; None lets the mechanism choose."""

    name: str
    value: Count | None
    source: str


PretrainedPart = Literal["query", "key", "value", "output", "positions", "class_token", "head"]


@dataclass(frozen=True)
class PretrainedConfig:
    """Weights that a model starts from, and parts of it that start anew all the same.

    Attributes:
        weights: "timm:<model>", a .safetensors or .pth file, or the folder of a finished run; None for random ones.
        leave: what starts anew.
    """

    weights: str | None = None
    leave: list[PretrainedPart] = field(default_factory=list)


@dataclass(frozen=True)
class BackboneConfig:
    name: str
    summary: str
    source: str
    target: str
    options: Mapping[str, Any]
    pretrained: PretrainedConfig = field(default_factory=PretrainedConfig)


LastBatch = Literal["dropped", "kept"]


@dataclass(frozen=True)
class OptimizerConfig:
    """`decays` says what weight decay is on.

    That is all parameters; or all but vectors, scalars and what mixers exempt; or the matrices of linear layers alone.
    """

    name: Literal["radam", "adam", "adamw", "sgd"]
    lr: Positive
    weight_decay: NonNegative = 0.0
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: Positive = 1e-8
    decays: Literal["matrices", "linear", "all"] = "matrices"


@dataclass(frozen=True)
class AugmentationConfig:
    """What is done to training images and their labels; the values here leave both alone, but for resizing.

    Attributes:
        crop_scale: least and largest share of the image in a random crop that is resized; None resizes and crops the
            centre, as in evaluation.
        flip: probability of a horizontal flip.
        pad: pixels of padding around the image before a random crop of its own size.
        color_jitter: largest change of brightness, contrast and saturation; unused where `auto_augment` is.
        auto_augment: RandAugment and others, in timm's notation.
        random_erasing: probability that a rectangle becomes noise.
        repeats: copies of an image in an epoch, each augmented anew; the epoch has as many samples as before.
        mixup, cutmix: alpha of the Beta distribution that mixing weights and areas are drawn from; 0 does without.
        mix_probability: of mixing a batch at all.
        switch_probability: of cutmix rather than mixup, where both are in use.
        label_smoothing: mass that is spread evenly over all classes.
    """

    crop_scale: tuple[Share, Share] | None = None
    flip: Fraction = 0.0
    pad: NonNegativeInt = 0
    color_jitter: NonNegative = 0.0
    auto_augment: str | None = None
    random_erasing: Fraction = 0.0
    repeats: Count = 1
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    mix_probability: Share = 1.0
    switch_probability: Share = 0.5
    label_smoothing: Fraction = 0.0


@dataclass(frozen=True)
class RecipeConfig:
    """How a model is trained. `batch_size` is global: over all devices and accumulated batches.

    An epoch is one pass over the training samples, or `steps_per_epoch` updates where that is given: then samples
    come from an endless row of passes. `one_cycle` rises linearly from lr / 25 to lr over `warmup_fraction` of all
    updates and falls linearly to lr / 250,000; with `momentum=cycled` the first beta falls meanwhile from 0.95 to 0.85
    and rises again, as it does in torch's OneCycleLR where nobody turns that off. `cosine` changes from epoch to epoch:
    it rises linearly from `warmup_lr` to lr in `warmup_epochs`, is min_lr + (lr - min_lr) (1 + cos(pi t / T)) / 2 in
    epoch t of T = epochs - cooldown_epochs, and `min_lr` in the last `cooldown_epochs`; with `schedule_lag` each rate
    comes so many epochs later, after as many more of the first one. `inverse_sqrt` rises linearly from `warmup_lr` to
    lr in `warmup_steps` = w updates and is lr sqrt(w / n) behind n updates from then on (fairseq); `noam` is
    lr min(n / w, sqrt(w / n)) in the n-th update (Vaswani et al. 2017, section 5.3).

    `drop_path` is the probability of leaving out a branch of the last layer, falling linearly to 0 at the first;
    `ema_decay` is that of an exponential moving average of the weights after each update, which is evaluated beside
    them; None does without. `last_train_batch` says what becomes of the last batch of an epoch if it is incomplete.
    """

    name: str
    source: str
    optimizer: OptimizerConfig
    schedule: Literal["constant", "one_cycle", "cosine", "inverse_sqrt", "noam"]
    epochs: Epochs
    batch_size: BatchSize
    clip_norm: Positive | None
    eval_every_epochs: Epochs
    dropout: Fraction
    attention_dropout: Fraction
    steps_per_epoch: Count | None = None
    last_train_batch: LastBatch = "kept"
    warmup_fraction: Fraction = 0.0
    momentum: Literal["cycled", "fixed"] = "fixed"
    warmup_epochs: NonNegativeInt = 0
    warmup_steps: NonNegativeInt = 0
    warmup_lr: NonNegative = 0.0
    min_lr: NonNegative = 0.0
    cooldown_epochs: NonNegativeInt = 0
    schedule_lag: NonNegativeInt = 0
    drop_path: Fraction = 0.0
    ema_decay: Fraction | None = None
    augmentation: AugmentationConfig = AugmentationConfig()

    def steps(self, train_samples: int) -> int:
        """Updates of a whole run."""
        return self.epochs * math.ceil(self._epoch(train_samples) / self.batch_size)

    def samples(self, train_samples: int) -> int:
        """Training samples that a whole run sees, each as often as it is seen."""
        return self.epochs * self._epoch(train_samples)

    def _epoch(self, train_samples: int) -> int:
        if self.steps_per_epoch:
            return self.steps_per_epoch * self.batch_size
        incomplete = train_samples % self.batch_size if self.last_train_batch == "dropped" else 0
        return train_samples - incomplete


@dataclass(frozen=True)
class PublishedValue:
    """A setting that the paper used for the task, and where that is read."""

    value: Any
    source: str


@dataclass(frozen=True)
class TaskConfig:
    """A learning problem: its data, its metric and the model dimensions that the followed code uses for it.

    `archive` is where a time-series `dataset` belongs, `data_options` are what the data is told besides. Where the
    followed code selects the best epoch on a development set, `selection` says so.
    """

    name: str
    summary: str
    source: str
    target: str
    data_target: str
    dataset: str | None
    metric: str
    dims: Mapping[str, Dimension]
    dims_source: str
    lr: Positive
    published: Mapping[str, PublishedValue]
    quick: Mapping[str, NonNegativeInt] = field(default_factory=dict)
    archive: Literal["uea", "ucr", "tser"] | None = None
    weight_decay: NonNegative = 0.0
    data_options: Mapping[str, Any] = field(default_factory=dict)
    selection: Literal["test", "validation"] = "test"


@dataclass(frozen=True)
class PrimalFidelity:
    """Where the code of Primal-Attention differs from its paper; see the mechanism for what each means."""

    rows: Literal["all", "real"]
    loss_tokens: Literal["all", "real"]
    over_tokens: Literal["mean", "sum"]
    multiplier_form: Literal["square", "exponential"]
    square: Literal["sample", "batch"]


@dataclass(frozen=True)
class FlowformerFidelity:
    """Where Flowformer's time-series code is other than one would have it: its attention sees padding."""

    padding_in_mixers: Literal["masked", "seen"]


@dataclass(frozen=True)
class LRAFidelity:
    """Where the Long Range Arena code of transformer-ls and Nystromformer is other than one would have it.

    Attributes:
        brackets: ListOps without its closing brackets' tokens, as the old tokeniser left it, or with them.
        text_bytes: how much of a review of task lra/text is read.
        black_pixels: id 0 of a pixel is also that of padding, so black pixels are masked; or they count as pixels.
        mean_over: tokens that the pooled mean divides by: all positions, or real ones.
        last_test_batch: the last incomplete batch on test.
        momentum: of AdamW while the learning rate cycles.
        decays: what weight decay is on: also biases and scales of norms, or matrices alone.
    """

    brackets: Literal["dropped", "kept"]
    text_bytes: Count
    black_pixels: Literal["padding", "pixels"]
    mean_over: Literal["all", "real"]
    last_test_batch: Literal["dropped", "kept"]
    momentum: Literal["cycled", "fixed"]
    decays: Literal["all", "matrices"] = "matrices"


@dataclass(frozen=True)
class DeiTFidelity:
    """Where DeiT's code is other than one would have it.

    Attributes:
        schedule_lag: epochs that its schedule is late.
        last_train_batch: the last incomplete batch of an epoch.
        class_token_std: that the class token is drawn with; None is that of timm today, 1e-6.
    """

    schedule_lag: NonNegativeInt
    last_train_batch: LastBatch = "dropped"
    class_token_std: Positive | None = 0.02


@dataclass(frozen=True)
class FidelityConfig:
    """One switch per quirk of the followed code that moves numbers."""

    name: str
    batch_norm_over: Literal["all", "real"]
    layer_losses: Literal["mean", "sum"] = "mean"
    primal: PrimalFidelity = PrimalFidelity("all", "all", "mean", "square", "sample")
    flowformer: FlowformerFidelity = FlowformerFidelity("seen")
    lra: LRAFidelity = LRAFidelity("dropped", 4000, "padding", "all", "dropped", "cycled", "all")
    deit: DeiTFidelity = DeiTFidelity(1)


@dataclass(frozen=True)
class ProtocolConfig:
    """On what the best epoch is selected. `strict` keeps test out of every choice."""

    name: Literal["published", "strict"]
    selection: Literal["test", "validation"]
    validation_fraction: Fraction
    split_seed: NonNegativeInt


@dataclass(frozen=True)
class ScaleConfig:
    """`paper` as published, `quick` in minutes on two CPU cores."""

    name: Literal["paper", "quick"]
    epochs: Epochs | None = None
    steps_per_epoch: Count | None = None
    batch_size: BatchSize | None = None
    max_length: Count | None = None
    attention_dropout: Fraction | None = None
    warmup_epochs: NonNegativeInt | None = None
    warmup_steps: NonNegativeInt | None = None
    image_size: Count | None = None
    dim: Dimension | None = None
    depth: Dimension | None = None
    accumulation: Count | None = None


@dataclass(frozen=True)
class DataConfig:
    """Where data comes from; `root` holds the folders that a person put there."""

    name: Literal["real", "standin"]
    root: str


@dataclass(frozen=True)
class TrainerConfig:
    """Devices and numerics. Only `precision` changes a run's identity."""

    name: str
    accelerator: Literal["auto", "cpu", "gpu"]
    devices: Count
    strategy: Literal["auto", "ddp", "fsdp"]
    precision: Literal["32-true", "16-mixed", "bf16-mixed"]
    accumulation: Count
    threads: Threads | None
    keep_freed_memory: bool
    deterministic: bool
    checkpoint_seconds: NonNegative
    loader_workers: NonNegativeInt | None = None


@dataclass(frozen=True)
class LoggerConfig:
    name: Literal["csv", "tensorboard", "wandb"]
    project: str = "reattend"


@dataclass(frozen=True)
class LauncherConfig:
    """How `scripts/reproduce.py` starts the runs of a table; `train.py` runs in its own process whatever it says.

    Attributes:
        kind: in this process, in worker processes, or in SLURM jobs; `submitit_local` plays SLURM on this machine.
        workers: processes at once on a machine; None is one per GPU, or cores / threads of a run.
        jobs: SLURM jobs, each on a node of its own, in one array.
        minutes: time limit of a job, which queues again when it is over.
        partition: None is the cluster's default.
        gpus, cpus: of a node; None leaves them to the cluster.
        sbatch: any further flags by name, such as {account: lab, constraint: a100}.
        note: what a person should know before using it.
    """

    name: str
    kind: Literal["local", "processes", "slurm", "submitit_local"] = "local"
    workers: Count | None = None
    jobs: Count = 1
    minutes: Count = 1440
    partition: str | None = None
    gpus: Count | None = None
    cpus: Count | None = None
    sbatch: Mapping[str, str | int | bool] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class RunConfig:
    """Everything that one run is told."""

    seed: NonNegativeInt
    attention: AttentionConfig
    beta: BetaConfig
    scales: ScalesConfig
    window: WindowConfig
    backbone: BackboneConfig
    recipe: RecipeConfig
    task: TaskConfig
    fidelity: FidelityConfig
    protocol: ProtocolConfig
    scale: ScaleConfig
    data: DataConfig
    trainer: TrainerConfig
    logger: LoggerConfig
    launcher: LauncherConfig
    compile: bool
    rerun: bool
    outputs: str
