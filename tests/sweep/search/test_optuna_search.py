"""Optuna search: what the study stores, learns, prunes and survives."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.sweep.simulated_search import (
    MODEL_CHOICE,
    RATE_RANGE,
    SIZE_RANGE,
    STEPS,
    load_study,
    load_trials,
    open_search,
    run_search,
    train,
)
from trainer.errors import ConfigError, StorageError
from trainer.runs.status import RunStatus, State


def trial_states(folder):
    return [trial.state.name for trial in load_trials(folder)]


def test_study_has_values_and_directory_of_every_point(tmp_path):
    ranges = (RATE_RANGE, SIZE_RANGE, MODEL_CHOICE)
    search = open_search(tmp_path, *ranges, trials=12)
    run_search(search)
    del search
    trials = load_trials(tmp_path)
    assert [trial.user_attrs["point"] for trial in trials] == list(range(1, 13))
    repeated = open_search(tmp_path, *ranges, trials=12)
    for trial in trials:
        point = repeated.next_point()
        assert {key: str(value) for key, value in trial.params.items()} == point.varied
        assert trial.user_attrs["run"] == str(point.path)


def train_with_two_batch_sizes(point, search):
    """Train half of the points for other numbers of steps, as with another batch size."""
    return train(point, search, steps=STEPS if point.number % 2 else (7, 14, 21))


def test_points_are_pruned_after_equal_numbers_of_evaluations(tmp_path):
    search = open_search(tmp_path / "a", trials=16)
    states = [state for _, state in run_search(search, train_point=train_with_two_batch_sizes)]
    del search
    assert set(states[:5]) == {"done"}
    assert "pruned" in states[5::2]
    assert "pruned" in states[6::2]
    assert trial_states(tmp_path / "a") == [
        {"done": "COMPLETE"}.get(state, "PRUNED") for state in states
    ]


def test_prune_false_prunes_nothing(tmp_path):
    search = open_search(tmp_path, trials=16, prune=False)
    results = run_search(search, train_point=train_with_two_batch_sizes)
    assert {state for _, state in results} == {"done"}


def test_pruned_point_is_not_trained_again(tmp_path):
    search = open_search(tmp_path, trials=10)
    outcomes = []
    while point := search.next_point():
        outcomes.append(train(point, search))
        search.record_outcome(point, outcomes[-1])
    del search
    repeated = open_search(tmp_path, trials=10)
    assert [repeated.next_point().pruned for _ in outcomes] == [
        outcome if outcome.state is State.PRUNED else None for outcome in outcomes
    ]
    assert State.PRUNED in {outcome.state for outcome in outcomes}


def test_evaluations_after_the_command_was_killed_are_read_from_the_run(tmp_path, monkeypatch):
    def train_seventh_unattended(point, search):
        """Train point 7 as if its run had outlived the command."""
        if point.number < 7:
            return train(point, search)
        point.path.mkdir(parents=True)
        lines = [
            {"step": step, "split": "test", "epoch": 1, "accuracy": 0.001 * step, "loss": 1.0}
            for step in STEPS
        ]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (point.path / "metrics.jsonl").write_text(text + '{"step": 4')
        return RunStatus(State.STOPPED)

    monkeypatch.chdir(tmp_path)
    search = open_search(tmp_path, trials=7, prune=False)
    run_search(search, train_point=train_seventh_unattended)
    del search
    repeated = open_search(tmp_path, trials=7)
    assert [repeated.next_point().pruned for _ in range(7)] == [None] * 6 + [
        RunStatus(State.PRUNED, 20, {"accuracy": 0.02, "loss": 1.0})
    ]
    assert load_trials(tmp_path)[-1].intermediate_values == {1: 0.01, 2: 0.02}


def test_repeated_search_retries_failed_points(tmp_path):
    def fail_twice(point, search):
        if point.number in (2, 4):
            return RunStatus(State.FAILED, error="no memory")
        return train(point, search)

    first = run_search(open_search(tmp_path, trials=6), train_point=fail_twice)
    assert [state for _, state in first].count("failed") == 2
    assert trial_states(tmp_path).count("FAIL") == 2
    second = run_search(open_search(tmp_path, trials=6))
    assert [label for label, _ in second] == [label for label, _ in first]
    assert "failed" not in dict(second).values()
    numbers = [trial.user_attrs["point"] for trial in load_trials(tmp_path)]
    assert numbers == [1, 2, 3, 4, 5, 6, 2, 4]


def test_repeated_search_continues_unfinished_points(tmp_path):
    search = open_search(tmp_path, trials=6)
    points = [search.next_point() for _ in range(3)]
    search.record_outcome(points[1], train(points[1], search))
    del search
    repeated = open_search(tmp_path, trials=6)
    assert [repeated.next_point().label for _ in range(3)] == [point.label for point in points]
    del repeated
    assert trial_states(tmp_path) == ["RUNNING", "COMPLETE", "RUNNING"]
    assert len(run_search(open_search(tmp_path, trials=6))) == 6
    assert trial_states(tmp_path) == ["COMPLETE"] * 6


def test_folder_is_locked_while_it_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.sweep.search.optuna_search._LOCK_WAIT_SECS", 0)
    search = open_search(tmp_path)
    message = "is searched by another command; wait for it, or stop it"
    with pytest.raises(ConfigError, match=message):
        open_search(tmp_path)
    del search
    open_search(tmp_path)


def test_trial_with_a_nan_metric_fails(tmp_path):
    search = open_search(tmp_path, trials=1)
    outcome = RunStatus(State.DONE, 30, {"accuracy": math.nan})
    search.record_outcome(search.next_point(), outcome)
    assert trial_states(tmp_path) == ["FAIL"]


def test_loss_is_minimized(tmp_path):
    assert len(run_search(open_search(tmp_path, trials=3, metric="loss"))) == 3
    assert load_study(tmp_path).direction.name == "MINIMIZE"


def test_unknown_metric_is_refused_with_the_known_ones(tmp_path):
    search = open_search(tmp_path, metric="acuracy", mode="max")
    with pytest.raises(ConfigError) as raised:
        search.should_prune(search.next_point(), 10, {"loss": 1.0, "accuracy": 0.5})
    assert raised.value.problems == (
        "sweep.metric (acuracy) must be a metric of the evaluation, which has loss, accuracy; "
        "add sweep.metric=<one of them>",
    )


def test_study_without_results_is_replaced(tmp_path):
    open_search(tmp_path, metric="acuracy", mode="max").next_point()
    assert len(run_search(open_search(tmp_path, metric="loss", trials=2))) == 2
    assert trial_states(tmp_path) == ["COMPLETE"] * 2


def test_study_of_another_search_is_refused(tmp_path):
    folder = tmp_path / "mine"
    run_search(open_search(folder, trials=2))
    rates = "optimizer.learning_rate=interval(0.1,0.2)"
    with pytest.raises(ConfigError) as raised:
        open_search(folder, rates, MODEL_CHOICE, metric="loss")
    assert raised.value.problems == (
        f"{folder / 'study.db'} holds a search that differs in "
        "goal: maximize accuracy -> minimize loss; "
        "optimizer.learning_rate: tag(log,interval(0.0001,0.1)) -> interval(0.1,0.2)",
        "go on with the command as it was, or start another search with sweep.name=<name>",
    )


def test_damaged_study_is_an_error_of_one_line(tmp_path):
    (tmp_path / "study.db").write_text("not a database" * 100)
    message = r"study.db could not be written: .*file is not a database$"
    with pytest.raises(StorageError, match=message):
        open_search(tmp_path)


KILLED_SEARCH = """
import json, os, signal, sys
from pathlib import Path
from sqlalchemy.orm import Session
from tests.sweep.simulated_search import open_search, run_search

search = open_search(Path(sys.argv[1]), trials=12)
commit = Session.commit
num_commits = 0


def commit_or_die(self):
    global num_commits
    num_commits += 1
    if num_commits == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self)


Session.commit = commit_or_die
print(json.dumps(run_search(search)))
"""


@pytest.mark.slow
def test_search_killed_at_any_commit_has_the_same_points(tmp_path):
    uninterrupted = run_search(open_search(tmp_path / "uninterrupted", trials=12))
    folder = tmp_path / "killed"
    num_kills = 0
    random = Random(0)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    while True:
        kill_at_commit = random.randint(1, 60) if num_kills < 3 else 0
        process = subprocess.run(
            [sys.executable, "-c", KILLED_SEARCH, str(folder), str(kill_at_commit)],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr
        num_kills += 1
    assert num_kills == 3
    assert [tuple(result) for result in json.loads(process.stdout)] == uninterrupted
    trials = [trial for trial in load_trials(folder) if "point" in trial.user_attrs]
    assert [trial.user_attrs["point"] for trial in trials] == list(range(1, 13))
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
