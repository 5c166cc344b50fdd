from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reattend.runs import identity
from reattend.runs.identity import COUNTS, IGNORED, fingerprint, run_folder

from .example import BN, LAYERS, SOFTMAX, example

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from leaves(entry, f"{path}.{key}" if path else key)
    else:
        yield path


def at(config: dict[str, Any], path: str) -> Any:
    for key in path.split("."):
        config = config[key]
    return config


def with_value(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    *parents, last = path.split(".")
    (at(changed, ".".join(parents)) if parents else changed)[last] = value
    return changed


def of(config: dict[str, Any]) -> str:
    return fingerprint(config, "data", {})


def covering(path: str, table: tuple[str, ...]) -> str:
    """The longest entry of `table` that stands for `path`, "" if none."""
    return max((entry for entry in table if path == entry or path.startswith(f"{entry}.")), key=len, default="")


def covered(path: str, table: tuple[str, ...]) -> bool:
    """Whether `table` has `path`, and not the other table a part of it."""
    return len(covering(path, table)) > len(covering(path, tuple({*COUNTS, *IGNORED} - {*table})))


COUNTED = [path for path in leaves(example()) if covered(path, COUNTS) and not path.startswith("attention.at")]
COUNTED = [path for path in COUNTED if path not in ("attention.default", "attention.parts")]


def test_every_key_of_the_schema_is_classified_exactly_once() -> None:
    for path in leaves(example()):
        assert covered(path, COUNTS) != covered(path, IGNORED), path
    known = {*leaves(example()), "task.data_options.file"}  # which only texts have
    for entry in (*COUNTS, *IGNORED):
        assert any(path == entry or path.startswith(f"{entry}.") for path in known), entry


def test_an_unclassified_key_is_refused() -> None:
    with pytest.raises(KeyError, match=r"recipe\.warmup"):
        of(with_value(example(), "recipe.warmup", 10))


@given(st.sampled_from(IGNORED), plain)
def test_ignored_keys_never_matter(path: str, value: Any) -> None:
    assert of(with_value(example(), path, value)) == of(example())


@given(st.sampled_from(COUNTED), plain)
def test_counted_keys_always_matter(path: str, value: Any) -> None:
    same = identity._canonical_json(value) == identity._canonical_json(at(example(), path))
    assert (of(with_value(example(), path, value)) == of(example())) == same


@given(st.randoms(use_true_random=False))
def test_order_of_keys_never_matters(random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key]) for key in keys}

    assert of(shuffled(example(LAYERS))) == of(example(LAYERS))


def test_a_configuration_read_back_from_json_has_the_same_fingerprint() -> None:
    assert of(json.loads(json.dumps(example(LAYERS)))) == of(example(LAYERS))


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1e-3, 0.001), (0.0, -0.0), (400, 4e2), ((1, 2), [1.0, 2])])
def test_equal_numbers_are_equal(one: Any, other: Any) -> None:
    path = "backbone.options.dim"
    assert of(with_value(example(), path, one)) == of(with_value(example(), path, other))


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, "1"), (None, "None"), (0.1, 0.1 + 1e-17 + 1e-16)])
def test_unequal_values_are_unequal(one: Any, other: Any) -> None:
    path = "backbone.options.dim"
    assert of(with_value(example(), path, one)) != of(with_value(example(), path, other))


def test_known_value_stays() -> None:
    """Folders of finished runs carry it: if this fails, every result so far would be run again."""
    assert of(example()) == "79643ddeabd2"


def test_data_and_revisions_count() -> None:
    config = example()
    assert fingerprint(config, "other", {}) != of(config)
    assert fingerprint(config, "data", {"attention": 0}) == of(config)
    assert fingerprint(config, "data", {"attention": 1}) != of(config)
    assert fingerprint(config, "data", {"attention": 1}) != fingerprint(config, "data", {"attention": 2})
    assert fingerprint(config, "data", {"attention": 1}) != fingerprint(config, "data", {"task": 1})


def test_a_file_counts_by_its_content_and_not_by_its_place() -> None:
    text, moved, cut = ({"max_length": n, "file": path} for n, path in ((8, "a"), (8, "b"), (9, "a")))
    known = [of(with_value(example(), "task.data_options", options)) for options in (text, moved, cut)]
    assert known[0] == known[1] != known[2]


def test_without_data_there_is_no_fingerprint() -> None:
    with pytest.raises(ValueError, match="checksum"):
        fingerprint(example(), "", {})


def test_layers_count_by_what_they_are_not_by_their_names() -> None:
    base = of(example(LAYERS))
    renamed = replace(LAYERS, default="plain", at={-1: "centred"}, parts={"plain": SOFTMAX, "centred": BN})
    assert of(example(renamed)) == base
    assert of(example(replace(LAYERS, parts={**LAYERS.parts, "unused": BN}))) == base
    assert of(example(replace(LAYERS, at={0: "bn"}))) != base
    assert of(example(replace(LAYERS, default="bn"))) != base
    other = replace(BN, options={"recenter": {"beta": 0.5}})
    assert of(example(replace(LAYERS, parts={"softmax": SOFTMAX, "bn": other}))) != base


def test_a_key_added_later_leaves_old_results_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    old, old_layers = of(example()), of(example(LAYERS))
    monkeypatch.setattr(identity, "COUNTS", (*COUNTS, "recipe.warmup"))
    monkeypatch.setattr(
        identity, "AS_BEFORE", identity.AS_BEFORE | {"recipe.warmup": 0, "attention.options.kernel.temperature": 1}
    )
    assert of(with_value(example(), "recipe.warmup", 0)) == old
    assert of(with_value(example(), "recipe.warmup", 5)) != old
    assert of(with_value(example(), "attention.options.kernel.temperature", 1.0)) == old
    assert of(with_value(example(), "attention.options.kernel.temperature", 2.0)) != old
    part = "attention.parts.bn.options.kernel.temperature"
    assert of(with_value(example(LAYERS), part, 1.0)) == old_layers
    assert of(with_value(example(LAYERS), part, 2.0)) != old_layers


def test_folder() -> None:
    assert run_folder("out", example(), "abc") == Path("out/runs/uea/vowels/bn/encoder/s3-abc")
    custom = replace(BN, name="custom", target="my_package.mixers.MyMixer")
    assert run_folder("out", example(custom), "abc") == Path("out/runs/uea/vowels/custom-MyMixer/encoder/s3-abc")
    assert run_folder("out", example(LAYERS), "abc") == Path("out/runs/uea/vowels/layers/encoder/s3-abc")
