"""One run in this process, in a folder of its own, to a complete result."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from reattend.backbones import build_backbone
from reattend.backbones.pretrained import Start, start_from
from reattend.config import build, build_mixer_factory, locate, to_dict
from reattend.config.revisions import own_code, revisions
from reattend.config.schema import RunConfig
from reattend.data.facts import check_enough
from reattend.data.sampled import SampledData
from reattend.data.samplers import MicroBatch, rows_per_micro_batch
from reattend.data.source import source_of
from reattend.efficiency.flops import count_flops
from reattend.errors import ReattendError, RunInterruptedError
from reattend.pipes import is_unread
from reattend.runs.environment import commit_label, write_environment
from reattend.runs.files import write_json
from reattend.runs.identity import fingerprint, run_folder
from reattend.runs.lease import Lease, LeaseLost
from reattend.runs.load import save_model
from reattend.runs.result import Result, unfinished, write_result
from reattend.runs.status import mark
from reattend.seeding import derive
from reattend.tasks.supervised import SupervisedTask
from reattend.train.callbacks import CHECKPOINT
from reattend.train.devices import accelerator, forget_peaks, prepare_cpu
from reattend.train.fit import Trained, fit

CONFIGURATION = "config.json"


@dataclass(frozen=True)
class Plan:
    """A checked configuration with its data, and the identity that follows from both."""

    config: RunConfig
    data: SampledData
    fingerprint: str
    folder: Path


def plan(config: RunConfig) -> Plan:
    """Reads the data of `config` and names its run.

    Raises:
        ReattendError: data is missing or malformed.
    """
    data = build_data(config)
    task = locate(config.task.target)
    if task.kind != data.kind:
        raise ReattendError(
            f"{config.task.dataset} is a {data.kind} set, {config.task.name} learns {task.kind}: choose another set, or"
            " another task (python scripts/list.py task)."
        )
    capabilities = build_mixer_factory(config).capabilities
    on_purpose = "padding_on_purpose" in capabilities.reasons
    if _first(data)["padding_mask"] is not None and not capabilities.padding_mask and not on_purpose:
        raise ReattendError(
            f"{config.task.name} has padded series, and attention={config.attention.name} does not keep padding out"
            " (its capabilities say padding_mask=False)."
        )
    plain = to_dict(config)
    name = fingerprint(plain, data.checksum, revisions(config))
    return Plan(config, data, name, run_folder(config.outputs, plain, name))


def build_data(config: RunConfig) -> SampledData:
    """The run's data, read and prepared.

    Raises:
        ReattendError: data is missing or malformed, or too little for one update.
    """
    data: SampledData = build(
        config.task.data_target,
        **source_of(config).options(config),
        dataset=config.task.dataset,
        root=config.data.root,
        standin=config.data.name == "standin",
        selection=config.protocol.selection,
        validation_fraction=config.protocol.validation_fraction,
        split_seed=config.protocol.split_seed,
        batch_size=config.recipe.batch_size,
        seed=config.seed,
        devices=config.trainer.devices,
        accumulation=config.trainer.accumulation,
        steps_per_epoch=config.recipe.steps_per_epoch,
    )
    check_enough(config, data.sizes["train"])
    data.last_train_batch = config.recipe.last_train_batch
    return data


def build_model(config: RunConfig, shape: Mapping[str, int]) -> tuple[nn.Module, Start | None]:
    """The run's model, initialised from the run's seed, then from the weights that it names, if any.

    Raises:
        ReattendError: there are no such weights, or they do not fit.
    """
    torch.manual_seed(derive(config.seed, "initialisation"))
    model = build_backbone(config, shape)
    pretrained = config.backbone.pretrained
    if pretrained.weights is None:
        return model, None
    return model, start_from(model, pretrained.weights, pretrained.leave, config.backbone.options["num_heads"])


def build_task(config: RunConfig, shape: Mapping[str, int], model: nn.Module | None = None) -> SupervisedTask:
    """The run's task around its model."""
    task = build(
        config.task.target,
        build_model(config, shape)[0] if model is None else model,
        num_outputs=shape["num_outputs"],
        recipe=config.recipe,
        seed=config.seed,
        split="val" if config.protocol.selection == "validation" else "test",
        loss_weights=config.attention.loss_weights,
    )
    return cast(SupervisedTask, task)


def execute(planned: Plan, leader: bool = True) -> None:
    """Trains and evaluates a planned run; one that was interrupted goes on from its checkpoint.

    Args:
        planned: what to run.
        leader: False in the further processes of a run on several devices, which claim and write nothing.

    Raises:
        ReattendError: the folder is claimed, a file in it is not usable, training is not finite, the disk is full.
    """
    config, folder = planned.config, planned.folder
    forget_peaks()
    prepare_cpu(config.trainer)
    device = accelerator(config.trainer)
    if not leader:
        _train(planned, None)
        return
    with Lease.claim(folder) as lease, _status(folder) as finished:
        if finished:
            return
        environment = write_environment(folder, own_code(config))
        write_json(folder / CONFIGURATION, to_dict(config))
        finished_run = _train(planned, lease)
        for which, weights in finished_run.trained.weights.items():
            lease.check()
            save_model(folder, which, {"config": to_dict(config), "shape": planned.data.shape}, weights)
        lease.check()
        write_result(folder, _result(planned, finished_run, environment, device))


@dataclass(frozen=True)
class _Finished:
    """A trained model, what it had started from, and what training left."""

    model: nn.Module
    start: Start | None
    trained: Trained


def _train(planned: Plan, lease: Lease | None) -> _Finished:
    config = planned.config
    model, start = build_model(config, planned.data.shape)
    if lease is not None:
        print(*filter(None, [start, _batch(config)]), sep="\n", flush=True)
    _check_further_tests(model, planned)
    task = build_task(config, planned.data.shape, model)
    if config.compile:
        # In place: wrapping would rename the keys of the state dict.
        model.compile()
    return _Finished(model, start, fit(config, task, planned.data, planned.folder, planned.fingerprint, lease))


def _check_further_tests(model: nn.Module, planned: Plan) -> None:
    """Tries a sample of each further form of test, which else would fail after all training.

    Raises:
        ReattendError: the model cannot take one.
    """
    remedy = (
        " Leave it out: task.data_options.test_sizes=[]" if planned.config.task.data_options.get("test_sizes") else ""
    )
    for form, samples in planned.data.further_tests().items():
        sample = samples[MicroBatch(torch.zeros(1, dtype=torch.int64), torch.ones(1), 1)]
        try:
            with torch.no_grad():
                model.eval()(sample["x"], sample["padding_mask"])
        except ValueError as error:
            raise ReattendError(f"{form} cannot be evaluated with this attention: {error}.{remedy}") from error
    model.train()


def _batch(config: RunConfig) -> str:
    """What goes into an update, and how fast it learns."""
    recipe, devices, accumulation = config.recipe, config.trainer.devices, config.trainer.accumulation
    rows = rows_per_micro_batch(recipe.batch_size, devices, accumulation)
    parts = f" = {devices} device(s) x {accumulation} accumulated x {rows}" if devices * accumulation > 1 else ""
    return f"batch {recipe.batch_size:,}{parts}, {recipe.optimizer.name} with learning rate {recipe.optimizer.lr:g}"


@contextlib.contextmanager
def _status(folder: Path) -> Iterator[bool]:
    """Keeps the folder's status around the block; yields whether another process finished the run meanwhile."""
    if unfinished(folder) is None:
        yield True
        return
    mark(folder, "running")
    try:
        yield False
    except LeaseLost:
        raise  # The folder, its status included, belongs to another process now.
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        # Lightning leaves with SystemExit on both signals; with `| head` nobody reads on.
        if isinstance(error, KeyboardInterrupt | SystemExit) or (isinstance(error, BrokenPipeError) and is_unread()):
            kept = (folder / CHECKPOINT).exists()
            place = "its last checkpoint" if kept else "the beginning: trainer.checkpoint_seconds had not passed"
            interruption = RunInterruptedError(
                f"The run in {folder} was interrupted; the same command goes on with it, from {place}."
            )
            mark(folder, "failed", interruption)
            raise interruption from error
        mark(folder, "failed", error)
        raise
    mark(folder, "done")


def _result(planned: Plan, run: _Finished, environment: Mapping[str, Any], device: str) -> Result:
    config, data = planned.config, planned.data
    sample = {key: value for key, value in _first(data).items() if key in ("x", "padding_mask")}
    model, trained = run.model.cpu(), run.trained
    on_gpu = device == "gpu"
    return Result(
        task=config.task.name,
        attention=config.attention.name,
        backbone=config.backbone.name,
        seed=config.seed,
        fingerprint=planned.fingerprint,
        scale=config.scale.name,
        protocol=config.protocol.name,
        fidelity=to_dict(config)["fidelity"],
        data=config.data.name,
        metrics=trained.metrics,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=count_flops(model, sample),
        training_flops=count_flops(model, sample, backward=True),
        seconds=trained.seconds,
        peak_memory=torch.cuda.max_memory_allocated() if on_gpu else _peak_process_memory(),
        device=torch.cuda.get_device_name() if on_gpu else f"{environment['cpu']}, {environment['threads']} thread(s)",
        versions=environment["versions"],
        git_commit=commit_label(environment["git"]),
        data_checksums={"train and test": data.checksum},
        config=to_dict(config),
        started_from=None if run.start is None else asdict(run.start),
    )


def _first(data: SampledData) -> dict[str, Any]:
    """The first test sample as a batch."""
    return data.test[MicroBatch(torch.zeros(1, dtype=torch.int64), torch.ones(1), 1)]


def _peak_process_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
