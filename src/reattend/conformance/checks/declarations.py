"""What the class says about itself is so."""

from __future__ import annotations

from reattend.attention import Mixer
from reattend.conformance.check import check
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject

METHODS = {"decoding": ("initial_state", "step"), "attention_map": ("attention_map",)}


@check("Claimed capabilities have their methods", once=True)
def methods(subject: Subject) -> Passed:
    kind = subject.factory.mixer_class
    for capability, names in METHODS.items():
        missing = [name for name in names if getattr(kind, name) is getattr(Mixer, name)]
        if getattr(subject.capabilities, capability) and missing:
            raise CheckFailed(
                f"{' and '.join(names)}, since capabilities claim {capability}=True",
                f"no {' and no '.join(missing)} in {kind.__name__}",
                f"define {' and '.join(missing)}, or claim {capability}=False",
                method="capabilities",
            )
    return Passed()


@check("Names that weight decay must leave alone are those of parameters")
def no_weight_decay(subject: Subject) -> Passed:
    mixer = subject.mixer()
    named = {name for name, _ in mixer.named_parameters()}
    unknown = sorted(set(mixer.no_weight_decay()) - named)
    if unknown:
        raise CheckFailed(
            f"names among {', '.join(sorted(named))}",
            f"'{unknown[0]}'" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""),
            "names as in named_parameters(), with those of submodules in front",
            method="no_weight_decay",
        )
    return Passed()
