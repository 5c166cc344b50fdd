"""From a command line to searches, nothing run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from reattend.config import ConfigError, check_overrides, compose, config_dir, normalise_overrides, read, written_out
from reattend.config.groups import members
from reattend.errors import ReattendError
from reattend.search.best import Best, TrialRecord, bests_of, write_best
from reattend.search.plan import Search, check_extra, plan_searches
from tests.small_run import SMALL

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")

BN = ["attention=bn", *SMALL]


def plans(*overrides: str, flags: Sequence[str] = ("-m",)) -> list[Search]:
    return plan_searches(flags, normalise_overrides([*BN, *overrides]))


def test_each_entry_of_a_list_is_a_search_with_equally_many_trials() -> None:
    found = plans("attention=softmax,bn", "search=lr", "protocol=strict", "hydra.sweeper.n_trials=7")
    assert [search.config.attention.name for search in found] == ["softmax", "bn"]
    assert {search.trials for search in found} == {7}
    assert len({search.folder for search in found}) == 2
    assert all(search.direction == "maximize" and search.metric == "val/accuracy" for search in found)
    assert found[0].folder.parent == Path("outputs/search/uea/japanese_vowels/softmax")


def test_ranges_of_the_command_line_are_searched_and_what_it_fixes_is_not() -> None:
    (search,) = plans("search=lr_beta", "protocol=strict", "beta.value=0.3", "recipe.clip_norm=choice(1.0,4.0)")
    assert dict(search.space) == {
        "recipe.optimizer.lr": "tag(log, interval(1e-4, 1e-2))",
        "recipe.clip_norm": "choice(1.0,4.0)",
    }


def test_a_study_is_known_by_what_its_trials_share_and_not_by_how_many_there_are() -> None:
    common = ("search=lr", "protocol=strict")
    (first,) = plans(*common)
    assert plans(*common, "hydra.sweeper.n_trials=3")[0].folder == first.folder
    for other in ("seed=1", "recipe.optimizer.lr=interval(1e-5,1e-3)"):
        assert plans(*common, other)[0].folder != first.folder


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["search=lr"], "protocol=published has none: it selects on test. Add protocol=strict."),
        (["search=lr", "protocol=strict", "recipe.optimizer.lr=0.1"], "nothing left to search"),
        (["search=lr", "protocol=strict", "seed=0,1"], "one seed"),
        (["search=lr,beta", "protocol=strict"], "one search at a time"),
        (["search=beta_optuna", "attention=softmax", "protocol=strict"], "softmax on .* does not use beta.value"),
        (["search=window", "protocol=strict"], "does not use window.value"),
    ],
)
def test_what_cannot_be_searched_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(ReattendError, match=told):
        plans(*overrides)


def test_a_search_without_m_is_refused() -> None:
    with pytest.raises(ReattendError, match="search=lr is several runs, which needs -m"):
        plans("search=lr", flags=())


def test_hydras_own_sweeps_are_left_to_hydra() -> None:
    assert plans("search=seeds") == []
    assert plans("seed=0,1") == []


@pytest.mark.parametrize("name", [name for name in members("search") if name not in ("seeds", "beta")])
def test_each_search_has_something_that_it_changes(name: str) -> None:
    (search,) = plans(f"search={name}", "attention=sparse_bn_sh", "backbone.options.dim=32", "protocol=strict")
    assert search.trials == 20
    assert search.space


def test_a_missing_extra_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reattend.search.plan.find_spec", lambda name: None)
    with pytest.raises(ReattendError, match=r"search=lr needs Optuna.*pip install 'reattend\[search\]'"):
        check_extra(["-m"], ["search=lr"])
    check_extra(["-m"], ["search=seeds"])
    assert (config_dir() / "search" / "lr.yaml").is_file()


def example() -> Best:
    return Best(
        search="lr",
        metric="val/accuracy",
        value=0.9,
        trials=2,
        failed=1,
        seed=0,
        space={"recipe.optimizer.lr": "interval(1e-4, 1e-2)"},
        overrides=["attention=bn", "attention.options.kernel.fused=false", "recipe.optimizer.lr=0.002"],
        history=[TrialRecord(["recipe.optimizer.lr=0.002"], 0.9), TrialRecord(["recipe.optimizer.lr=0.01"], None)],
    )


def test_the_best_configuration_is_a_file_that_every_command_takes(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    write_best(path, example())
    assert bests_of(["seed=1", f"best={path}"]) == [example()]
    assert str(example()) == "best of 2 trials by val/accuracy (search=lr, seed 0; 1 failed)"
    check_overrides([f"best={path}", "seed=1"])
    run = read(compose([f"best={path}", "seed=1"]))
    assert (run.attention.name, run.recipe.optimizer.lr, run.seed) == ("bn", 0.002, 1)
    assert run.attention.options["kernel"]["fused"] is False
    later = read(compose([f"best={path}", "attention=bn_sh"]))
    assert later.attention.name == "bn_sh"


def test_a_file_that_is_none_of_a_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        written_out([f"best={tmp_path / 'best.yaml'}"])
    (tmp_path / "other.yaml").write_text("attention: bn\n")
    with pytest.raises(ConfigError, match="holds no overrides of a search"):
        written_out([f"best={tmp_path / 'other.yaml'}"])
    with pytest.raises(ConfigError, match="attention: no such"):
        bests_of([f"best={tmp_path / 'other.yaml'}"])
