"""Faults in a mixer of the user's own are told in one line each."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reattend.attention import LayeredMixerFactory, Mixer, MixerFactory, MixerSpec, MultiHeadAttention
from reattend.attention.trial import trial_problems
from reattend.errors import ReattendError

SPEC = MixerSpec(dim=8, num_heads=2, max_length=6, num_layers=3)
SOUND = """
import torch
from torch import nn
from reattend.attention import Capabilities, Mixer, MixerSpec

class Own(Mixer):
    def __init__(self, spec: MixerSpec, *, gate: bool = True) -> None:
        super().__init__()
        self.proj = nn.Linear(spec.dim, spec.dim)

    @classmethod
    def capabilities(cls, **options):
        return Capabilities()

    def forward(self, x, padding_mask=None, context=None, context_mask=None):
        return self.proj(x)
"""
INIT = "def __init__(self, spec: MixerSpec, *, gate: bool = True) -> None:"
FORWARD = "def forward(self, x, padding_mask=None, context=None, context_mask=None):"
CAPABILITIES = "    @classmethod\n    def capabilities(cls, **options):\n        return Capabilities()\n"
BUILD = "self.proj = nn.Linear(spec.dim, spec.dim)"
RETURN = "return self.proj(x)"

Own = Callable[..., type[Mixer]]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Own]:
    """The class of `SOUND` from a file `own_attention.py`, after replacing some of its text."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(*replaced: tuple[str, str]) -> type[Mixer]:
        source = SOUND
        for old, new in replaced:
            assert old in source
            source = source.replace(old, new)
        (tmp_path / "own_attention.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.import_module("own_attention").Own  # type: ignore[no-any-return]

    yield make
    sys.modules.pop("own_attention", None)


def line_of(cls: type[Mixer], text: str) -> str:
    file = Path(str(sys.modules[cls.__module__].__file__))
    number = next(i for i, line in enumerate(file.read_text().splitlines(), start=1) if text in line)
    return f"({file}, line {number})"


def only(problems: list[str]) -> str:
    (problem,) = problems
    assert "\n" not in problem
    return problem


def test_a_sound_mixer_has_no_problems(own: Own) -> None:
    factory = MixerFactory(own(), {"gate": False})
    assert factory.problems(SPEC) == trial_problems(factory, SPEC) == []


@pytest.mark.parametrize(
    ("replaced", "told"),
    [
        ((CAPABILITIES, ""), "Own does not define capabilities, which every mixer must"),
        ((FORWARD, "def forwards(self, x):"), "Own does not define forward, which every mixer must"),
        (("    @classmethod\n", ""), "Own.capabilities must be a classmethod: write @classmethod above"),
        (("Capabilities()", "{'causal': True}"), "must return reattend.attention.Capabilities(...), not {'causal'"),
        (("return Capabilities()", "pass"), "must return reattend.attention.Capabilities(...), not None"),
        (("Capabilities()", "Capabilities(causl=1)"), "Own.capabilities fails: TypeError"),
        (("spec: MixerSpec, *, ", "*, "), "must be the MixerSpec: write def __init__(self, spec, *, gate)"),
        (("spec: MixerSpec, *, ", ""), "must be the MixerSpec: write def __init__(self, spec, *, gate)"),
        ((INIT, "def make(self, spec):"), "must be the MixerSpec: write def __init__(self, spec)"),
        ((INIT, "def __init__(self, spec, gate=True):"), "'gate' of Own must be by keyword only"),
    ],
)
def test_a_broken_contract_is_told_without_building(own: Own, replaced: tuple[str, str], told: str) -> None:
    factory = MixerFactory(own(replaced), {"gate": False})
    assert told in only(factory.problems(SPEC))


@pytest.mark.parametrize(
    "written", ["place: MixerSpec", "place", "spec", "*arguments", "place: MixerSpec | None = None"]
)
def test_the_spec_goes_by_any_name(own: Own, written: str) -> None:
    cls = own((INIT, INIT.replace("spec: MixerSpec, *", written if written[0] == "*" else f"{written}, *")))
    assert MixerFactory(cls, {"gate": False}).problems(SPEC) == []


@pytest.mark.parametrize(
    ("replaced", "told", "at"),
    [
        (("super().__init__()", "pass"), "Own.__init__ fails: AttributeError: cannot assign module before", BUILD),
        ((BUILD, "self.x = [][1]"), "Own.__init__ fails: IndexError: list index out of range", "[][1]"),
        ((FORWARD, "def forward(self, x):"), "Own.forward fails: TypeError: Own.forward() takes 2", "def forward"),
        ((RETURN, "raise ValueError('two\\nlines')"), "Own.forward fails: ValueError: two lines", "raise"),
        (
            (RETURN, "return self.proj(x[..., 1:])"),
            "RuntimeError: mat1 and mat2 shapes cannot be multi",
            "self.proj(x[",
        ),
    ],
)
def test_a_fault_is_told_with_the_users_line(own: Own, replaced: tuple[str, str], told: str, at: str) -> None:
    cls = own(replaced)
    problem = only(trial_problems(MixerFactory(cls), SPEC))
    assert told in problem
    assert line_of(cls, at) in problem


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("None", "returns NoneType; it must return a tensor of shape (2, 6, 8)"),
        ("x.mean(1, keepdim=True)", "returns a tensor of shape (2, 1, 8) for x of (2, 6, 8)"),
        ("x[..., :4]", "returns a tensor of shape (2, 6, 4) for x of (2, 6, 8)"),
        ("x.log()", "returns values that are not all finite"),
        ("(x, 1.0)", "returns float beside its output"),
        ("(x, {'rank': x.sum()})", "returns the loss 'rank' as a tensor of shape ()"),
        ("(x, {'rank': x[:, 0, 0] / 0})", "returns the loss 'rank' that are not all finite"),
        ("(x, x, x)", "returns tuple"),
    ],
)
def test_an_output_of_another_form_is_told(own: Own, returned: str, told: str) -> None:
    assert told in only(trial_problems(MixerFactory(own((RETURN, f"return {returned}"))), SPEC))


def test_forgotten_super_init_without_submodules(own: Own) -> None:
    cls = own(("super().__init__()", "pass"), (BUILD, ""), (RETURN, "return x"))
    assert only(trial_problems(MixerFactory(cls), SPEC)) == "Own.__init__ must call super().__init__() first"


def test_losses_per_sample_are_fine(own: Own) -> None:
    assert trial_problems(MixerFactory(own((RETURN, "return x, {'rank': x[:, 0, 0]}"))), SPEC) == []


@pytest.mark.parametrize(("capable", "masks"), [(True, "[[6, 3]]"), (False, "[None]")])
def test_the_mask_is_given_to_those_that_can_take_one(own: Own, capable: bool, masks: str) -> None:
    seen = "self.seen.append(None if padding_mask is None else padding_mask.sum(1).tolist()); return x"
    cls = own(
        ("Capabilities()", f"Capabilities(padding_mask={capable})"), (RETURN, seen), (INIT, f"seen = []\n    {INIT}")
    )
    assert trial_problems(MixerFactory(cls), SPEC) == []
    assert str(vars(cls)["seen"]) == masks


def test_each_kind_of_layer_is_tried_once_and_ours_never(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(MultiHeadAttention, "forward", refuse)
    ours, wrong = MixerFactory(MultiHeadAttention), MixerFactory(own((RETURN, "return None")))
    assert trial_problems(ours, SPEC) == []
    assert trial_problems(LayeredMixerFactory(ours, {}), SPEC) == []
    told = only(trial_problems(LayeredMixerFactory(ours, {1: wrong, -1: wrong}), SPEC))
    assert told.startswith("layer 1: Own.forward returns NoneType")


def test_the_trial_leaves_the_random_stream_alone(own: Own) -> None:
    before = torch.get_rng_state()
    trial_problems(MixerFactory(own()), replace(SPEC, max_length=9))
    assert torch.equal(before, torch.get_rng_state())


def test_a_problem_of_the_contract_refuses_the_build(own: Own) -> None:
    with pytest.raises(Exception, match=re.escape("Own cannot be built: Own does not define capabilities")):
        MixerFactory(own((CAPABILITIES, "")))(SPEC)


PARTS = """
from reattend.attention import Capabilities
from reattend.attention.slots import FeatureMap, Kernel

class OwnKernel(Kernel):
    def __init__(self, spec) -> None:
        super().__init__(spec)

    @classmethod
    def capabilities(cls, **options):
        return Capabilities()

    def forward(self, q, k, v, key_mask=None, **rest):
        return v

    def flops(self, num_queries, num_keys):
        return 0

class OwnMap(FeatureMap):
    def num_features(self, head_dim):
        return head_dim

    def forward(self, x):
        return x.exp()
"""
KERNEL = {"kernel": "own_attention.OwnKernel"}
MAP = {"kernel": {"name": "linear", "feature_map": {"name": "own_attention.OwnMap"}}}


@pytest.mark.parametrize(
    ("options", "old", "new", "told"),
    [
        (KERNEL, "    def flops(self, num_queries, num_keys):\n        return 0\n", "", "does not define flops, which"),
        (KERNEL, "    @classmethod\n", "", "OwnKernel.capabilities must be a classmethod"),
        (KERNEL, "Capabilities()", "{}", "OwnKernel.capabilities must return reattend.attention.Capabilities(...)"),
        (KERNEL, "super().__init__(spec)", "pass", "OwnKernel.__init__ must call super().__init__(spec) first"),
        (KERNEL, "return v\n", "return v @ k\n", "OwnKernel.forward fails: RuntimeError: Expected size"),
        (
            KERNEL,
            "return v\n",
            "return v[:, 1:]\n",
            "OwnKernel.forward returns a tensor of shape (2, 1, 6, 4); it must",
        ),
        (KERNEL, "return v\n", "return v / 0\n", "OwnKernel.forward returns values that are not all finite"),
        (MAP, "x.exp()", "x.foo()", "OwnMap.forward fails: AttributeError"),
        (MAP, "return head_dim", "return head_dim + 1", "(2, 2, 6, 4); it must return a tensor of shape (2, 2, 6, 5)"),
    ],
)
def test_faults_of_what_fills_a_slot_are_told(own: Own, options: dict[str, Any], old: str, new: str, told: str) -> None:
    assert old in PARTS
    own((SOUND, SOUND + PARTS.replace(old, new)))
    factory = MixerFactory(MultiHeadAttention, options)
    problem = only(factory.problems(SPEC) or trial_problems(factory, SPEC))
    assert told in problem
    if "fails" in told:
        assert line_of(sys.modules["own_attention"].Own, new.strip()) in problem


def test_sound_parts_have_no_problems(own: Own) -> None:
    own((SOUND, SOUND + PARTS))
    for options in (KERNEL, MAP):
        factory = MixerFactory(MultiHeadAttention, options)
        assert factory.problems(SPEC) == trial_problems(factory, SPEC) == []


def test_annotations_for_type_checkers_alone_are_no_fault(own: Own) -> None:
    head = "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
    imports = "from reattend.attention import Capabilities, Mixer, MixerSpec"
    guarded = f"{imports.removesuffix(', MixerSpec')}\nif TYPE_CHECKING:\n    {imports}"
    cls = own(
        (imports, guarded),
        ("\nimport torch\n", f"{head}import torch\n"),
        ("spec: Mixer", "place: Mixer"),
        ("spec.", "place."),
    )
    factory = MixerFactory(cls, {"gate": False})
    assert factory.problems(SPEC) == trial_problems(factory, SPEC) == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"kernel": {"name": "linear", "feature_map": {"name": "performer", "num_features": 10**14}}}, "num_features"),
        ({"projection": {"name": "conv1d", "kernel_size": 10**20}}, "kernel_size"),
    ],
)
def test_a_mixer_beyond_all_memory_is_told_with_its_options(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ReattendError, match=f"MultiHeadAttention with .*{name}.*there is no memory for it"):
        MixerFactory(MultiHeadAttention, options)(SPEC)
