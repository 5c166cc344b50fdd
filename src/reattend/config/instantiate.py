"""The one place that instantiates what a configuration names, and all reasons why that would fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reattend.config.binding import UNREADABLE, bind_dataclass, bind_signature, convert, unbind
from reattend.config.limits import Dimension
from reattend.config.locate import locate, locate_callable
from reattend.config.pairing import pairing_problems
from reattend.config.problems import ConfigError, refuse, suggestion
from reattend.config.resolve import attention_within, plain_attentions
from reattend.config.schema import AttentionConfig, AugmentationConfig, BackboneConfig, RunConfig, TaskConfig

if TYPE_CHECKING:  # `train.py --help` and a mistyped option are answered without torch
    from reattend.attention import LayeredMixerFactory, MixerFactory, MixerSpec

TRIAL_LENGTH = 64

MOST_NAMED, NAMED_OF_MANY = 8, 5
LIST_COMMAND = "python scripts/list.py attention"

RECIPE = """\
class MyMixer(reattend.attention.Mixer):
    def __init__(self, spec, *, my_option: int = 1): super().__init__(); ...
    def forward(self, x, padding_mask=None, context=None, context_mask=None): ...  # (B, N, D) to (B, N, D)
and a classmethod capabilities(cls, **options) that returns reattend.attention.Capabilities(...)"""


def build(target: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls what `target` names, after checking the arguments against its signature and converting them to its hints.

    Raises:
        ConfigError: no such target, or with every argument that is unknown, missing or of a wrong type.
    """
    function = locate_callable(target)
    problems: list[str] = []
    bound = bind_signature(function, kwargs, target, problems, positional=len(args))
    refuse(problems)
    return function(*args, **bound)


def build_mixer_factory(run: RunConfig) -> MixerFactory | LayeredMixerFactory:
    """What makes the mixer of each layer of `run`.

    Raises:
        ConfigError: a target that is no mixer, or options that its signature does not take.
    """
    problems: list[str] = []
    factory = attention_factory(run.attention, problems)
    refuse(problems)
    assert factory is not None
    return factory


def attention_factory(attention: AttentionConfig, problems: list[str]) -> MixerFactory | LayeredMixerFactory | None:
    """The factory of one attention, or None after adding to `problems`."""
    from reattend.attention import LayeredMixerFactory

    if attention.default is None:
        return _mixer_factory(attention, "attention", problems)
    parts = {
        name: _mixer_factory(part, f"attention={name}: attention", problems) for name, part in attention.parts.items()
    }
    default = parts.get(attention.default)
    at = {layer: parts.get(name) for layer, name in attention.at.items()}
    if default is None or None in at.values():
        return None
    return LayeredMixerFactory(default, {layer: part for layer, part in at.items() if part is not None})


def check_mixers(run: RunConfig, spec: MixerSpec) -> list[str]:
    """Reasons why the attention of `run` cannot work at `spec`, with those that can; empty if it can."""
    return _mixer_problems(run.attention, spec, unbind(run))


def check_run(run: RunConfig) -> None:
    """Checks, before any data is read, that everything in `run` can be built.

    Attention, backbone, task and data are imported, options bound to their signatures, and the attention is asked
    whether it works with the backbone's dimensions.

    Raises:
        ConfigError: with everything found.
    """
    refuse(build_problems({"attention": run.attention, "backbone": run.backbone, "task": run.task}, unbind(run)))


def build_problems(groups: Mapping[str, Any], tree: Mapping[str, Any]) -> list[str]:
    """What `check_run` would find in those of the bound `groups` that are readable; `tree` is the resolved whole."""
    problems: list[str] = []
    attention, backbone, task = (groups.get(name, UNREADABLE) for name in ("attention", "backbone", "task"))
    if isinstance(task, TaskConfig):
        for key, target in (("task.target", task.target), ("task.data_target", task.data_target)):
            found = _tell(locate_callable, target, key, problems)
            metrics = getattr(found, "higher_is_better", {}) if key == "task.target" else {}
            if metrics and task.metric not in metrics:
                told = f"{task.target} has no metric '{task.metric}'.{suggestion(task.metric, metrics, 'It has')}"
                problems.append(f"task.metric: {told}")
            if key == "task.data_target" and found is not UNREADABLE:
                bind_signature(found, task.data_options, "task.data_options", problems, complete=False)
                problems += _augmentation_problems(task, found, tree)
    misfit = pairing_problems(tree) if isinstance(backbone, BackboneConfig) else []
    if misfit:
        problems += misfit
        backbone = UNREADABLE  # nothing more can be said of it
    if isinstance(task, TaskConfig) and isinstance(backbone, BackboneConfig):
        problems += _size_problems(task.data_options, backbone.options.get("patch_size"))
    spec = _backbone_spec(backbone, problems) if isinstance(backbone, BackboneConfig) else None
    if isinstance(attention, AttentionConfig):
        if spec is not None:
            found_wrong = _mixer_problems(attention, spec, tree) or _trial_problems(attention, spec)
            problems += found_wrong or [
                *_accumulation_problems(attention, tree),
                *_reversible_problems(attention, tree),
            ]
        else:
            attention_factory(attention, problems)
    return problems


def _augmentation_problems(task: TaskConfig, data: Callable[..., Any], tree: Mapping[str, Any]) -> list[str]:
    """Augmentation of images that is asked for where data knows none."""
    recipe = tree.get("recipe")
    asked = recipe.get("augmentation") if isinstance(recipe, Mapping) else None
    if "augmentation" in inspect.signature(data).parameters or not isinstance(asked, Mapping):
        return []
    usual = unbind(AugmentationConfig())
    return [
        f"recipe.augmentation.{name}={value}: {task.name} has no images for it, and what it augments by itself is among"
        " task.data_options"
        for name, value in asked.items()
        if value != usual.get(name)
    ]


def _size_problems(options: Mapping[str, Any], patch: Any) -> list[str]:
    """Sizes of images that are not whole patches."""
    if not isinstance(patch, int) or patch < 1:
        return []
    sizes = [("image_size", options.get("image_size")), *(("test_sizes", s) for s in options.get("test_sizes") or [])]
    return [
        f"task.data_options.{key}: {size} is no multiple of backbone.options.patch_size={patch}."
        f" Nearest: {max(patch, size // patch * patch)} or {(size // patch + 1) * patch}"
        for key, size in sizes
        if isinstance(size, int) and size % patch
    ]


def _mixer_factory(attention: AttentionConfig, path: str, problems: list[str]) -> MixerFactory | None:
    from reattend.attention import Mixer, MixerFactory
    from reattend.attention.own_mixer import contract_problems

    kind = _tell(locate, attention.target, f"{path}.target", problems)
    if kind is UNREADABLE:
        return None
    if not (isinstance(kind, type) and issubclass(kind, Mixer)):
        problems.append(
            f"{path}.target: {attention.target} is not a subclass of reattend.attention.Mixer. Yours:\n{RECIPE}"
        )
        return None
    broken = contract_problems(kind, attention.options)
    if broken:
        problems += [f"{path}.target: {problem}" for problem in broken]
        return None
    before = len(problems)
    options = bind_signature(kind, attention.options, f"{path}.options", problems, positional=1)
    return MixerFactory(kind, options) if len(problems) == before else None


def _mixer_problems(attention: AttentionConfig, spec: MixerSpec, tree: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    factory = attention_factory(attention, problems)
    if factory is None:
        return problems
    found = factory.problems(spec)
    if not found:
        return []
    if _works(attention.name, spec, tree):
        return [f"attention={attention.name}: {'; '.join(found)}. With the options of its YAML file it works."]
    return [f"attention={attention.name} cannot work here: {'; '.join(found)}. {_advice(attention, spec, tree)}."]


def _advice(attention: AttentionConfig, spec: MixerSpec, tree: Mapping[str, Any]) -> str:
    """Names the attentions that work at `spec`; of many, those most like `attention`."""
    able = [name for name in plain_attentions() if name != attention.name and _works(name, spec, tree)]
    if not able:
        return "No attention can: change the backbone's options"
    if len(able) <= MOST_NAMED:
        return f"Attentions that can: {', '.join(able)}"
    meant = attention.parts.get(attention.default or "", attention)
    alike = sorted(able, key=lambda name: _unlikeness(meant, attention_within(tree, name, [])))[:NAMED_OF_MANY]
    return f"Attentions that can: {', '.join(alike)}, and {len(able) - len(alike)} more ({LIST_COMMAND})"


def _unlikeness(attention: AttentionConfig, other: Mapping[str, Any]) -> tuple[int, ...]:
    """Smaller for a mechanism of the same class, then kernel, then options; at last for one with few options."""
    options, others = attention.options, other["options"]
    kernels = [k.get("name") if isinstance(k, Mapping) else k for k in (options.get("kernel"), others.get("kernel"))]
    return (
        int(attention.target != other["target"]),
        int(kernels[0] != kernels[1]),
        len(set(options) ^ set(others)),
        len(others),
    )


def _trial_problems(attention: AttentionConfig, spec: MixerSpec) -> list[str]:
    """What a call with a few random tokens finds in mixers of the user's own; the data's length is not known yet."""
    from reattend.attention.trial import trial_problems

    factory = attention_factory(attention, [])
    if factory is None:
        return []
    places = TRIAL_LENGTH + (spec.prefix_tokens if spec.grid else 0)
    found = trial_problems(factory, replace(spec, max_length=places))
    return [f"attention={attention.name}: {problem}" for problem in found]


def _accumulation_problems(attention: AttentionConfig, tree: Mapping[str, Any]) -> list[str]:
    """Why a batch cannot be trained on in parts, if it is."""
    factory = attention_factory(attention, [])
    reason = None if factory is None else factory.capabilities.reasons.get("accumulation")
    trainer = tree.get("trainer")
    parts = trainer.get("accumulation") if isinstance(trainer, Mapping) else None
    if reason is None or parts in (None, 1, UNREADABLE):
        return []
    return [
        f"trainer.accumulation: attention={attention.name} needs the whole batch at once, not {parts} parts: {reason}"
    ]


def _reversible_problems(attention: AttentionConfig, tree: Mapping[str, Any]) -> list[str]:
    """Why layers that are computed again from their outputs cannot have this mixer, if they are."""
    factory = attention_factory(attention, [])
    reason = None if factory is None else factory.capabilities.reasons.get("losses")
    backbone = tree.get("backbone")
    options = backbone.get("options") if isinstance(backbone, Mapping) else None
    if reason is None or not isinstance(options, Mapping) or options.get("reversible") is not True:
        return []
    return [f"backbone.options.reversible=true has no place for losses, and attention={attention.name} has: {reason}"]


def _works(name: str, spec: MixerSpec, tree: Mapping[str, Any]) -> bool:
    """Whether attention `name`, as its YAML file has it, can be built at `spec`."""
    if name not in plain_attentions():
        return False
    problems: list[str] = []
    attention = bind_dataclass(AttentionConfig, attention_within(tree, name, problems), "", problems)
    factory = None if attention is UNREADABLE else attention_factory(attention, problems)
    return factory is not None and not problems and not factory.problems(spec)


def _backbone_spec(backbone: BackboneConfig, problems: list[str]) -> MixerSpec | None:
    """Where the backbone puts its mixers, as far as its options say; the sequence's length is the data's to know.

    A backbone whose mixers are causal or work on a grid says so by `place(**options)`, in fields of `MixerSpec`.
    """
    from reattend.attention import MixerSpec

    target = _tell(locate_callable, backbone.target, "backbone.target", problems)
    if target is UNREADABLE:
        return None
    before = len(problems)
    problems += [
        f"backbone.options.{name}: the data says it, no option does"
        for name in getattr(target, "from_data", ())
        if name in backbone.options
    ]
    options = bind_signature(target, backbone.options, "backbone.options", problems, positional=1, complete=False)
    sizes = {name: options.get(name) for name in ("dim", "num_heads", "depth")}
    for name in [*sizes, "ff_dim"]:
        convert(options.get(name), Dimension | None, f"backbone.options.{name}", problems)
    if len(problems) > before or None in sizes.values():
        return None
    place = {"max_length": 1} | (target.place(**options) if hasattr(target, "place") else {})
    return MixerSpec(dim=options["dim"], num_heads=options["num_heads"], num_layers=options["depth"], **place)


def _tell(find: Any, target: str, path: str, problems: list[str]) -> Any:
    try:
        return find(target)
    except ConfigError as error:
        problems.append(f"{path}: {error}")
        return UNREADABLE
