"""Searches, by simulation: what they train, and that kills and delays change nothing."""

import math
from contextlib import nullcontext

import pytest

from tests.sweep.simulated_search import (
    LENGTH,
    MODEL_CHOICE,
    RATE_RANGE,
    SIZE_RANGE,
    Killed,
    World,
    accuracy,
    make_search,
    read_log,
    replay,
    table,
)
from trainer.config.schema import Train
from trainer.errors import DONE, ConfigError
from trainer.sweep.rungs import Budgets
from trainer.sweep.study import FILE, Study

TWO = ["accuracy", "loss"]
OPTUNA = {"method": "optuna", "pruner_options": {"n_startup_trials": 2}, "max_points": 8}
SEARCHES = {
    "halving": {"method": "halving"},
    "asha": {"method": "asha"},
    "hyperband": {"method": "hyperband"},
    "asha of samples": {"method": "asha", "max_points": 9, "sampler": "random"},
    "asha by TPE": {"method": "asha", "max_points": 9, "sampler": "TPESampler"},
    "pbt": {"method": "pbt", "population": 4, "every_epochs": 5.0},
    "optuna": OPTUNA,
    "optuna by NSGA-II": {
        **OPTUNA, "sampler": "NSGAIISampler", "sampler_options": {"population_size": 3},
    },
    "optuna by two metrics": {
        "method": "optuna", "pruner": "NopPruner", "sampler_options": {"n_startup_trials": 3},
        "max_points": 8, "metric": TWO,
    },
    "optuna by Hyperband": {
        **OPTUNA, "pruner": "HyperbandPruner", "pruner_options": {"max_resource": LENGTH},
    },
}  # fmt: skip
OVERRIDES = (RATE_RANGE, MODEL_CHOICE)
NUMBERS = (RATE_RANGE, SIZE_RANGE)  # of which a branch may have others
ALL = pytest.mark.parametrize("name", SEARCHES)


def overrides(name):
    if name == "pbt":
        return NUMBERS
    return () if name in ("halving", "asha", "hyperband") else OVERRIDES


def steps_of(command):
    """Return the number of points that have reached each step."""
    reached = [trial.step for trial in command.study.trials.values()]
    return {step: sum(each >= step for each in reached) for step in sorted({*reached})}


@pytest.mark.parametrize(
    ("options", "unit", "levels"),
    [
        ({}, "epochs", [round(27 / 27, 6), 3.0, 9.0, None]),
        ({"epochs": (1.0, None), "eta": 3}, "epochs", [1.0, 3.0, 9.0, None]),
        ({"epochs": (0.5, 8.0), "eta": 4}, "epochs", [0.5, 2.0, 8.0]),
        ({"steps": (10, 300)}, "steps", [12, 34, 100, 300]),
        ({"train": Train(steps=90, epochs=None)}, "steps", [4, 10, 30, None]),
        ({"train": Train(steps=90, epochs=None), "steps": (50, None)}, "steps", [None]),
    ],
)
def test_rungs_end_at_the_largest_budget(options, unit, levels):
    options = {"train": Train(epochs=27), "steps": (), "epochs": (), "eta": 3, **options}
    pair = {name: (*options[name], None, None)[:2] for name in ("steps", "epochs")}
    budgets = Budgets.of(options["train"], pair["steps"], pair["epochs"], options["eta"])
    assert (budgets.unit, list(budgets.levels)) == (unit, levels)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"min_steps": 5}, "search.max_steps (null)"),
        ({"min_steps": 5, "max_epochs": 3.0}, "in steps and in epochs"),
        ({"max_epochs": 28.0}, "search.max_epochs (28)"),
        ({"min_epochs": 27.0}, "search.min_epochs (27)"),
        ({"sampler": "tpe"}, "search.sampler (tpe)"),
        ({"sampler": "TPESampler", "sampler_options": {"seeds": 1}}, "sampler_options.seeds"),
        ({"sampler": "GridSampler"}, "GridSampler refuses them"),
        ({"method": "optuna", "pruner": "PercentilePruner"}, "PercentilePruner refuses them"),
        ({"metric": TWO}, "search=asha decides by one; add sweep.metric=accuracy"),
        ({"metric": TWO, "method": "halving"}, "search=halving decides by one"),
        ({"metric": TWO, "method": "hyperband"}, "search=hyperband decides by one"),
        ({"metric": TWO, "method": "pbt", "population": 3}, "search=pbt decides by one"),
        ({"metric": TWO, "method": "optuna"}, "search.pruner (MedianPruner) must be NopPruner"),
        (
            {"metric": TWO, "method": "optuna", "sampler": "CmaEsSampler", "pruner": "NopPruner"},
            "search.sampler (CmaEsSampler) chooses by one metric, and sweep.metric has 2",
        ),
    ],
)
def test_option_that_cannot_work_is_refused_with_its_key(tmp_path, options, problem):
    with pytest.raises(ConfigError) as error:
        make_search(tmp_path, **options)
    assert problem in str(error.value)
    assert not list(tmp_path.iterdir())


def test_range_without_a_number_of_points_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"search.max_points \(null\)"):
        make_search(tmp_path, RATE_RANGE)


@pytest.mark.parametrize("method", ["halving", "hyperband"])
def test_a_third_of_a_rung_continues(tmp_path, method):
    command = World(tmp_path).sweep(method=method)
    assert (command.code, steps_of(command)) == (DONE, {1: 9, 3: 3, 27: 1})
    (best,) = (trial for trial in command.study.trials.values() if trial.step == LENGTH)
    assert best.values == {"model": "cnn", "optimizer.learning_rate": "0.01"}


def test_asha_continues_a_point_before_all_have_begun_and_finds_the_best(tmp_path):
    world = World(tmp_path)
    command = world.sweep(method="asha", jobs=2)
    events = [(event["event"], event["number"]) for event in read_log(tmp_path)]
    assert min(events.index(event) for event in events if event[0] == "continue") < events.index(
        ("start", 9)
    )
    best = max(command.results.values(), key=lambda result: result.outcome.metrics["accuracy"])
    assert (best.point.label, best.outcome.step) == ("model=cnn optimizer.learning_rate=0.01", 27)
    assert len(world.trained) < 9 * LENGTH / 2


def test_hyperband_has_brackets_of_fewer_and_longer_points(tmp_path):
    search = make_search(tmp_path, RATE_RANGE, SIZE_RANGE, method="hyperband")
    assert [(len(bracket.numbers), bracket.first) for bracket in search.brackets()] == [
        (27, 0), (12, 1), (6, 2), (4, 3),
    ]  # fmt: skip
    larger = make_search(tmp_path, RATE_RANGE, method="hyperband", max_points=60)
    assert [len(bracket.numbers) for bracket in larger.brackets()] == [27, 12, 6, 4, 11]


@pytest.mark.slow
@ALL
def test_search_killed_at_any_write_has_the_same_log(tmp_path, name):
    settings = SEARCHES[name]
    whole = World(tmp_path / "whole")
    undisturbed = whole.sweep(*overrides(name), **settings)
    log = (tmp_path / "whole" / FILE).read_bytes()
    replay(tmp_path / "whole", *overrides(name), **settings)
    num_writes = len(log.splitlines())
    for first in range(1, num_writes, num_writes // 12):
        folder = tmp_path / str(first)
        world = World(folder, save_every=1 + first % 4)
        writes = first
        for _ in range(100):
            try:
                command = world.sweep(*overrides(name), writes=writes, **settings)
                break
            except Killed:
                writes += 13
        assert (folder / FILE).read_bytes() == log
        assert table(command) == table(undisturbed)


@pytest.mark.slow
@ALL
def test_decisions_of_parallel_points_follow_from_the_log(tmp_path, name):
    """With processes that die, in any order, and a driver that is killed."""
    settings = SEARCHES[name]
    for seed in range(2):
        folder = tmp_path / str(seed)
        world = World(folder, seed, crash_rate=0.03)
        for writes in [7, 22, *[None] * 40]:
            try:
                command = world.sweep(*overrides(name), jobs=3, writes=writes, **settings)
            except Killed:
                continue
            if command.code == DONE:
                break
        study = replay(folder, *overrides(name), **settings)
        assert not study.running
        assert len(study.trials) == len(command.results)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["halving", "asha", "hyperband"])
def test_many_schedules_of_many_points_end_with_replayable_decisions(tmp_path, method):
    for seed in range(10):
        folder = tmp_path / str(seed)
        settings = {"method": method, "max_points": 12 + seed, "seed": seed, "reduction": 2}
        world = World(folder, seed, save_every=3, crash_rate=0.01 * (seed % 3))
        for writes in [1 + 7 * seed % 50, *[None] * 60]:
            try:
                command = world.sweep(
                    RATE_RANGE, SIZE_RANGE, jobs=1 + seed % 5, writes=writes, **settings
                )
            except Killed:
                continue
            if command.code == DONE:
                break
        study = replay(folder, RATE_RANGE, SIZE_RANGE, **settings)
        assert not study.running
        assert any(trial.step == LENGTH for trial in study.trials.values())


def test_step_that_a_checkpoint_has_is_not_trained_again(tmp_path):
    world = World(tmp_path, save_every=1)
    for writes in [9, 14, 21, None]:
        with pytest.raises(Killed) if writes else nullcontext():
            world.sweep(writes=writes)
    repeated = [each for each in {*world.trained} if world.trained.count(each) > 1]
    # Killed between an evaluation and the save after it, at most one step each time.
    assert len(repeated) <= 3


def test_points_are_pruned_after_equal_numbers_of_evaluations(tmp_path):
    command = World(tmp_path).sweep(*OVERRIDES, **OPTUNA)
    states = [state for _, state, _ in table(command).values()]
    assert states[:2] == ["done", "done"]
    assert "pruned" in states[2:]


def test_optuna_chooses_by_the_direction_of_each_metric(tmp_path):
    settings = {**SEARCHES["optuna by two metrics"], "max_points": 12}

    def labels(mode):
        command = World(tmp_path / str(mode)).sweep(*NUMBERS, **settings, mode=mode)
        return [label for label, *_ in table(command).values()]

    declared, larger_loss = labels("auto"), labels("max")
    assert labels(["max", "min"]) == declared
    assert larger_loss[:3] == declared[:3]
    assert larger_loss != declared


def test_failed_point_trains_again_and_counts_as_the_worst_until_then(tmp_path):
    world = World(tmp_path, crash_rate=1.0)
    failed = world.sweep(method="halving")
    assert {state for _, state, _ in table(failed).values()} == {"failed"}
    world.crash_rate = 0.0
    command = world.sweep(method="halving")
    assert steps_of(command) == {1: 9, 3: 3, 27: 1}


def test_point_without_a_number_is_never_continued(tmp_path):
    def curve(point, step):
        return math.nan if point.experiment.choices["model"] == "cnn" else accuracy(point, step)

    command = World(tmp_path, curve=curve).sweep(method="halving")
    longer = [trial.values["model"] for trial in command.study.trials.values() if trial.step > 1]
    assert len(longer) == 3
    assert "cnn" not in longer


def test_steps_of_the_whole_sweep_are_limited_and_a_larger_limit_continues(tmp_path):
    world = World(tmp_path)
    short = world.sweep(method="halving", max_steps=10)
    assert (short.code, short.study.steps) == (DONE, 11)
    assert steps_of(world.sweep(method="halving")) == {1: 9, 3: 3, 27: 1}


def test_more_points_join_a_search_that_has_ended(tmp_path):
    world = World(tmp_path)
    settings = {"method": "halving", "sampler": "random"}
    before = world.sweep(RATE_RANGE, **settings, max_points=6)
    after = world.sweep(RATE_RANGE, **settings, max_points=18)
    assert steps_of(before)[1] == 6
    assert steps_of(after) == {1: 18, 3: 6, 9: 2, 27: 1}


def test_other_search_in_the_same_folder_is_refused(tmp_path):
    world = World(tmp_path)
    world.sweep(method="halving")
    with pytest.raises(ConfigError, match=r"reduction: none -> 2"):
        world.sweep(method="halving", reduction=2)


def test_log_is_read_to_its_last_whole_line_and_a_damaged_one_is_named(tmp_path):
    World(tmp_path).sweep(method="halving")
    log = tmp_path / FILE
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"event": "sta')
    study = Study()
    study.open(tmp_path, make_search(tmp_path, method="halving").definition)
    study.close()
    assert log.read_bytes() == whole
    lines = whole.splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], b"{\n", *lines[4:]]))
    with pytest.raises(ConfigError, match="line 4 is damaged"):
        Study().open(tmp_path, {})
