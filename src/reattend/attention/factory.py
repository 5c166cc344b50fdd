"""Mixer factories: what a backbone is handed in place of a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, intersect
from reattend.attention.lookup import option_problems
from reattend.attention.own_mixer import capabilities_problems, contract_problems
from reattend.errors import ReattendError


class MixerFactory:
    """Builds one kind of mixer for any place.

    Layers of one backbone get one module of what `Mixer.shared` builds. They are told from those of the next backbone
    by their places: a layer that has been served before, or a place that differs by more than its layer, starts anew.

    Args:
        mixer_class: the class.
        options: its keyword arguments.
    """

    def __init__(self, mixer_class: type[Mixer], options: Mapping[str, Any] | None = None) -> None:
        self.mixer_class = mixer_class
        self.options = dict(options or {})
        self._shared: nn.Module | None = None
        self._served: set[MixerSpec] = set()

    def __call__(self, spec: MixerSpec) -> Mixer:
        """The mixer for `spec`.

        Raises:
            ReattendError: if `problems` finds any, which it names, or no memory is left for the mixer.
        """
        _refuse(self.mixer_class.__name__, self.problems(spec))
        try:
            mixer = self.mixer_class(spec, **self.options)
            shared = self._shared_at(spec)
        except (MemoryError, RuntimeError, TypeError) as error:
            if not _is_too_large(error):
                raise
            sizes = ", ".join(f"{name}={value}" for name, value in self.options.items())
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            _refuse(f"{self.mixer_class.__name__} with {sizes}", [f"there is no memory for it ({told})"])
        if shared is not None:
            mixer.use_shared(shared)
        return mixer

    def _shared_at(self, spec: MixerSpec) -> nn.Module | None:
        if spec in self._served or any(replace(place, layer=spec.layer) != spec for place in self._served):
            self._served = set()
        if not self._served:
            self._shared = self.mixer_class.shared(spec, **self.options)
        self._served.add(spec)
        return self._shared

    @property
    def capabilities(self) -> Capabilities:
        return self.mixer_class.capabilities(**self.options)

    def problems(self, spec: MixerSpec) -> list[str]:
        """Reasons why the mixer cannot be built for `spec`; empty if it can."""
        return (
            contract_problems(self.mixer_class, self.options)
            or option_problems(self.mixer_class.__name__, self.mixer_class, self.options)
            or capabilities_problems(self.mixer_class, self.options)
            or self.mixer_class.problems(spec, **self.options)
        )

    def kinds(self, spec: MixerSpec) -> list[tuple[str, MixerFactory, MixerSpec]]:
        """The one kind of mixer that it builds, as `LayeredMixerFactory.kinds` has it."""
        return [("", self, spec)]


class LayeredMixerFactory:
    """Builds another mixer in some layers.

    Args:
        default: factory for all other layers.
        at: factories by index of the layer, from 0, or negative from the end.
    """

    def __init__(self, default: MixerFactory, at: Mapping[int, MixerFactory]) -> None:
        self.default = default
        self.at = dict(at)

    def __call__(self, spec: MixerSpec) -> Mixer:
        """The mixer for layer `spec.layer` of `spec.num_layers`.

        Raises:
            ReattendError: if `problems` finds any; names them all.
        """
        _refuse(type(self).__name__, self.problems(spec))
        return self._by_layer(spec.num_layers).get(spec.layer, self.default)(spec)

    @property
    def capabilities(self) -> Capabilities:
        """What the mixers of all layers can do; a reason names the layer."""
        parts = [("other layers", self.default.capabilities)]
        return intersect(parts + [(f"layer {index}", factory.capabilities) for index, factory in self.at.items()])

    def problems(self, spec: MixerSpec) -> list[str]:
        """Reasons why some layer of the backbone cannot be built, not only that of `spec`; empty if all can."""
        layers = spec.num_layers
        found = [
            f"layer {index} does not exist: the backbone has {layers} layers, {-layers} to {layers - 1}"
            for index in self.at
            if not -layers <= index < layers
        ]
        by_layer = self._by_layer(layers)
        if len(by_layer) + len(found) < len(self.at):
            found.append(f"two of the indices {sorted(self.at)} mean the same of {layers} layers")
        for name, factory, place in self.kinds(spec):
            found += [f"{name}{problem}" for problem in factory.problems(place)]
        return found

    def kinds(self, spec: MixerSpec) -> list[tuple[str, MixerFactory, MixerSpec]]:
        """What builds the layers of the backbone: a prefix that says which layers, their factory, and one place."""
        by_layer = self._by_layer(spec.num_layers)
        others = [layer for layer in range(spec.num_layers) if layer not in by_layer]
        found = [("other layers: ", self.default, replace(spec, layer=layer)) for layer in others[:1]]
        return found + [
            (f"layer {layer}: ", factory, replace(spec, layer=layer)) for layer, factory in sorted(by_layer.items())
        ]

    def _by_layer(self, num_layers: int) -> dict[int, MixerFactory]:
        return {index % num_layers: factory for index, factory in self.at.items() if -num_layers <= index < num_layers}


def _is_too_large(error: Exception) -> bool:
    """Whether `error` is that of an allocator, or of a number of bytes beyond any."""
    words = ("can't allocate memory", "Storage size calculation overflowed", "Overflow when unpacking")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error) for word in words)


def _refuse(what: str, problems: Iterable[str]) -> None:
    message = "; ".join(problems)
    if message:
        raise ReattendError(f"{what} cannot be built: {message}")
