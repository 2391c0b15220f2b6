"""Optuna search: what the study stores, learns, prunes and survives."""

import json
import math
from random import Random

import pytest
from sqlalchemy.orm import Session

from tests.sweep.simulated_search import (
    MODEL_CHOICE,
    RATE_RANGE,
    SIZE_RANGE,
    STEPS,
    load_trials,
    open_search,
    run_search,
    train,
)
from trainer.runs.status import RunStatus, State


def trial_states(folder):
    return [trial.state.name for trial in load_trials(folder)]


def train_with_two_batch_sizes(point, search):
    """Train half of the points for other numbers of steps, as with another batch size."""
    return train(point, search, steps=STEPS if point.number % 2 else (7, 14, 21))


@pytest.mark.slow
def test_points_are_pruned_after_equal_numbers_of_evaluations(tmp_path):
    search = open_search(tmp_path, RATE_RANGE, SIZE_RANGE, MODEL_CHOICE, trials=12)
    outcomes = []
    while point := search.next_point():
        outcomes.append(train_with_two_batch_sizes(point, search))
        search.record_outcome(point, outcomes[-1])
    del search
    states = [outcome.state for outcome in outcomes]
    assert set(states[:5]) == {State.DONE}
    assert State.PRUNED in states[5::2]
    assert State.PRUNED in states[6::2]
    trials = load_trials(tmp_path)
    assert [trial.state.name for trial in trials] == [
        "COMPLETE" if state is State.DONE else "PRUNED" for state in states
    ]
    # Repeated, each point has the values and directory of its trial, and its pruning.
    repeated = open_search(tmp_path, RATE_RANGE, SIZE_RANGE, MODEL_CHOICE, trials=12)
    for number, (trial, outcome) in enumerate(zip(trials, outcomes, strict=True), 1):
        point = repeated.next_point()
        assert trial.user_attrs["point"] == number
        assert list(trial.params) == list(point.varied)
        assert trial.user_attrs["run"] == str(point.path)
        assert point.pruned == (outcome if outcome.state is State.PRUNED else None)


@pytest.mark.slow
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


@pytest.mark.slow
def test_repeated_search_retries_failed_points(tmp_path):
    def fail_twice(point, search):
        if point.number == 1:
            return RunStatus(State.FAILED, error="no memory")
        if point.number == 2:
            return RunStatus(State.DONE, 30, {"accuracy": math.nan})
        return train(point, search)

    first = run_search(open_search(tmp_path, trials=3), train_point=fail_twice)
    assert trial_states(tmp_path) == ["FAIL", "FAIL", "COMPLETE"]
    second = run_search(open_search(tmp_path, trials=3))
    assert [label for label, _ in second] == [label for label, _ in first]
    assert {state for _, state in second} == {"done"}
    assert [trial.user_attrs["point"] for trial in load_trials(tmp_path)] == [1, 2, 3, 1, 2]


class Killed(BaseException):
    """Ends a search as a kill would."""


def test_repeated_search_continues_unfinished_points(tmp_path):
    search = open_search(tmp_path, trials=3)
    points = [search.next_point() for _ in range(2)]
    search.record_outcome(points[1], train(points[1], search))
    del search
    assert trial_states(tmp_path) == ["RUNNING", "COMPLETE"]
    results = run_search(open_search(tmp_path, trials=3))
    assert [label for label, _ in results[:2]] == [point.label for point in points]
    assert trial_states(tmp_path) == ["COMPLETE"] * 3


@pytest.mark.slow
def test_search_killed_at_any_commit_has_the_same_points(tmp_path, monkeypatch):
    uninterrupted = run_search(open_search(tmp_path / "uninterrupted", trials=8))
    folder, random, commit = tmp_path / "killed", Random(0), Session.commit
    for _ in range(3):
        search = open_search(folder, trials=8)
        left = [random.randint(1, 40)]

        def commit_or_die(session, left=left):
            left[0] -= 1
            if not left[0]:
                raise Killed
            commit(session)

        monkeypatch.setattr(Session, "commit", commit_or_die)
        with pytest.raises(Killed):
            run_search(search)
        monkeypatch.undo()
        del search
    assert run_search(open_search(folder, trials=8)) == uninterrupted
    trials = [trial for trial in load_trials(folder) if "point" in trial.user_attrs]
    assert [trial.user_attrs["point"] for trial in trials] == list(range(1, 9))
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
