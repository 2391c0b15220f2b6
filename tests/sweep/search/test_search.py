"""Random and Optuna search: the points they choose, and the settings they refuse."""

import copy

import pytest

from tests.sweep.simulated_search import (
    BASE,
    MODEL_CHOICE,
    RATE_RANGE,
    compose,
    open_search,
    parse,
    run_search,
    train,
)
from trainer.errors import ConfigError
from trainer.sweep.search.search import SearchContext

METHODS = pytest.mark.parametrize("method", ["random", "optuna"])


def test_invalid_bounds_are_reported_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError) as raised:
        open_search(tmp_path / "s", "optimizer.learning_rate=interval(-1,0)")
    assert raised.value.problems == (
        "optimizer.learning_rate (-1.0) must be > 0",
        "optimizer.learning_rate (0.0) must be > 0",
    )
    assert not (tmp_path / "s").exists()


def test_key_that_does_not_change_the_run_is_refused_and_so_is_none(tmp_path):
    message = r"checkpoint.keep \(choice\(1,2\)\) changes nothing that is trained"
    with pytest.raises(ConfigError, match=message):
        open_search(tmp_path, "checkpoint.keep=1,2", RATE_RANGE)
    with pytest.raises(ConfigError, match="search needs something to vary; write"):
        open_search(tmp_path, "seed=1")


def test_resume_of_one_run_is_refused(tmp_path):
    base = copy.deepcopy(BASE)
    base.resume = "runs/x"
    message = r"resume \(runs/x\) is one run, and a search has many"
    with pytest.raises(ConfigError, match=message):
        SearchContext(parse(RATE_RANGE), base, compose, tmp_path).space()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "optuna"])
def test_repeated_and_extended_search_has_the_same_points(tmp_path, method):
    uninterrupted = run_search(open_search(tmp_path / "a", method=method, trials=8))
    assert len({label for label, _ in uninterrupted}) == len(uninterrupted) == 8
    run_search(open_search(tmp_path / "b", method=method, trials=6), limit=4)
    assert run_search(open_search(tmp_path / "b", method=method, trials=6)) == uninterrupted[:6]
    assert run_search(open_search(tmp_path / "b", method=method, trials=8)) == uninterrupted
    other_seed = run_search(open_search(tmp_path / "c", method=method, trials=1, seed=1))
    assert other_seed != uninterrupted[:1]


@METHODS
def test_finite_search_space_is_exhausted_without_duplicates(tmp_path, method):
    rates = "optimizer.learning_rate=0.1,0.10,0.01"
    search = open_search(tmp_path, MODEL_CHOICE, rates, method=method, trials=20)
    points = []
    while point := search.next_point():
        points.append(point)
        search.record_outcome(point, train(point))
    assert len({point.path for point in points}) == len(points) == search.total == 4


def test_optuna_is_an_optional_package(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.config.options.targets.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        open_search(tmp_path)
    assert raised.value.problems == (
        "search (optuna) needs the package optuna; "
        "install it with: pip install 'steadfast[optuna]'",
    )
    assert len(run_search(open_search(tmp_path, method="random", trials=3))) == 3
