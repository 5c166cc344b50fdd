"""What was chosen for the slots of multi-head attention, and whether it fits together and to a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reattend.attention.contract import Capabilities, MixerSpec, intersect
from reattend.attention.lookup import SlotChoice, option_problems, resolve
from reattend.attention.recenter import Recenter
from reattend.attention.scaled_heads import ScaledHeads
from reattend.attention.slots import EVERYTHING, Kernel, Projection
from reattend.errors import ReattendError

PROJECTIONS = "reattend.attention.projections"
KERNELS = "reattend.attention.kernels"

NOT_CAUSAL_SCALED = Capabilities(
    context=True,
    attention_map=True,
    time_exponent=1.0,
    reasons={"causal": "a pooled key averages tokens of the future"},
)
NOT_CAUSAL_CONVOLVED = replace(
    NOT_CAUSAL_SCALED,
    attention_map=False,
    reasons={
        "causal": "a pooled key mixes tokens of the future",
        "attention_map": "each feature of a pooled value weighs the tokens of its window by a filter of its own",
    },
)
NOT_CAUSAL_RECENTERED = Capabilities(
    context=True,
    attention_map=True,
    time_exponent=1.0,
    reasons={
        "causal": "a kernel that is not shift-invariant recentres each key by the query's prefix mean: "
        "phi(k_j - beta mu_t) depends on t and j, so causal linear attention with recentring is not linear"
    },
)


@dataclass(frozen=True)
class SlotChoices:
    """The options of `MultiHeadAttention` that decide what it can do; same meaning and defaults."""

    projection: SlotChoice = "linear"
    scaled_heads: Mapping[str, Any] | None = None
    recenter: Mapping[str, Any] | None = None
    kernel: SlotChoice = "softmax"
    dropout: float = 0.0

    @classmethod
    def among(cls, options: Mapping[str, Any]) -> SlotChoices:
        """Those of the `options` of `MultiHeadAttention` that are choices for slots."""
        return cls(**{name: value for name, value in options.items() if name in cls.__dataclass_fields__})

    @property
    def scales(self) -> int | list[int]:
        """Downsampling factor of all heads, or of each."""
        scales = (self.scaled_heads or {}).get("scales")
        scales = 1 if scales is None else scales
        return scales if isinstance(scales, int) else list(scales)

    @property
    def downsamples(self) -> bool:
        """Whether some head is downsampled."""
        scales = self.scales
        return any(scale != 1 for scale in ([scales] if isinstance(scales, int) else scales))

    @property
    def recenters(self) -> bool:
        """Whether recentring does anything: beta = 0 is attention without it (Eqn 26)."""
        options = self.recenter
        return options is not None and bool(options.get("beta", 1.0) or options.get("learnable") or options.get("std"))

    def build_projection(self, spec: MixerSpec) -> Projection:
        projection, options = self._projection()
        return projection(spec, **options)

    def build_kernel(self, spec: MixerSpec) -> Kernel:
        kernel, options = self._kernel()
        return kernel(spec, **options)

    def _projection(self) -> tuple[type[Projection], dict[str, Any]]:
        return resolve(PROJECTIONS, Projection, self.projection)  # type: ignore[type-abstract]

    def _kernel(self) -> tuple[type[Kernel], dict[str, Any]]:
        return resolve(KERNELS, Kernel, self.kernel)  # type: ignore[type-abstract]

    def capabilities(self) -> Capabilities:
        """What the slots can do together."""
        projection, projection_options = self._projection()
        kernel, kernel_options = self._kernel()
        return intersect(
            [
                ("", projection.capabilities(**projection_options)),
                ("", kernel.capabilities(**kernel_options)),
                ("", self._pooling_capabilities()),
                ("", NOT_CAUSAL_RECENTERED if self.recenters and not kernel.shift_invariant else EVERYTHING),
            ]
        )

    def _pooling_capabilities(self) -> Capabilities:
        if not self.downsamples:
            return EVERYTHING
        return NOT_CAUSAL_CONVOLVED if (self.scaled_heads or {}).get("pooling") == "conv" else NOT_CAUSAL_SCALED

    def problems(self, spec: MixerSpec) -> list[str]:
        """Reasons why choices without `option_problems` do not fit `spec` or each other; empty if they do."""
        found = []
        projection, projection_options = self._projection()
        kernel, kernel_options = self._kernel()
        scales = self.scales
        if not isinstance(scales, int) and len(scales) != spec.num_heads:
            found.append(
                f"{len(scales)} scales {scales} for {spec.num_heads} heads: give one scale per head, "
                f"or leave every head whole (scales=none)"
            )
        each = [scales] if isinstance(scales, int) else scales
        if any(scale < 1 for scale in each):
            found.append(f"scales {scales} must be 1 (the whole head) or larger")
        if not 0 <= self.dropout < 1:
            found.append(f"dropout={self.dropout} must be at least 0 and below 1")
        if self.dropout and not kernel.dropout:
            found.append(f"dropout={self.dropout}, but {kernel.__name__} has no weights to drop: set dropout=0")
        if self.downsamples and not kernel.pooled_keys:
            found.append(
                f"{kernel.__name__} needs a key for every token, so its heads cannot be downsampled: set scales=none"
            )
        return found + projection.problems(spec, **projection_options) + kernel.problems(spec, **kernel_options)

    def option_problems(self) -> list[str]:
        """Unknown names, and unknown or wrongly typed options, of the slots."""
        found = []
        for kind, chosen in (("projection", self._projection), ("kernel", self._kernel)):
            try:
                part, options = chosen()
            except ReattendError as error:
                found.append(str(error))
            else:
                found += option_problems(f"{kind} '{part.__module__.rpartition('.')[2]}'", part, options)
        found += option_problems("recenter", Recenter, self.recenter or {})
        return found + option_problems("scaled_heads", ScaledHeads, self.scaled_heads or {})
