"""A sweep with real processes, killed in the middle of its points."""

import json
import os
import signal
from functools import partial

import pytest

from tests.support.processes import (
    OWN_SERVER,
    TIMEOUT_SECS,
    assert_same_run,
    descendants,
    start,
    succeed,
    wait_gone,
    wait_until,
)
from trainer.runs.checkpoint_marker import committed_steps

STEPS = 24
GRID = [
    "-m", "model=softmax,cnn", "optimizer.learning_rate=0.1,0.03,0.01", f"train.steps={STEPS}",
    "batch.global_size=32", "evaluate.every_steps=6", "checkpoint.every_steps=4",
    "checkpoint.every_epochs=null", "writers=[jsonl]", "sweep.name=grid",
]  # fmt: skip


SEARCH = [
    "-m", "model=softmax", "batch.global_size=32", "train.steps=16", "evaluate.every_steps=4",
    "checkpoint.every_steps=3", "checkpoint.every_epochs=null", "writers=[jsonl]",
    "sweep.name=grid", "dataset.validation=0.2",
]  # fmt: skip
LISTED = "optimizer.learning_rate=0.001,0.01,0.1"
RANGE = "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))"
SEARCHES = {
    "halving": ["search.min_steps=4", "search.reduction=2", LISTED],
    "asha": ["search.min_steps=4", "search.reduction=2", LISTED],
    "hyperband": ["search.min_steps=4", "search.reduction=2", "search.max_points=4", RANGE],
    "pbt": ["search.population=2", "search.every_steps=8", RANGE],
    "optuna": [
        "search.max_points=3", "search.pruner=PercentilePruner", RANGE,
        "search.pruner_options={percentile:50.0,n_startup_trials:1}",
    ],
}  # fmt: skip


def sweep(directory, *overrides, command=GRID):
    """Run a sweep to its end; return the files of its summary by name."""
    process = start(directory, *command, *overrides, **OWN_SERVER)
    try:
        _, err = process.communicate(timeout=3 * TIMEOUT_SECS)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    folder = directory / "runs" / "sweeps" / "grid"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def finished_runs(directory):
    """Return the files of finished runs, by name."""
    return {
        result.parent.name: {
            str(path.relative_to(result.parent)): path.read_bytes()
            for path in result.parent.rglob("*")
            if path.is_file() and path.name != ".lock"
        }
        for result in directory.glob("runs/*/result.json")
    }


def saved_steps(directory):
    """Return the sum of the steps of the newest checkpoints of all points."""
    folders = directory.glob("runs/*/checkpoints")
    return sum(max(committed_steps(folder), default=0) for folder in folders)


def num_events(directory):
    """Return the number of whole lines in the log of a search."""
    log = directory / "runs" / "sweeps" / "grid" / "search.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.slow
def test_killed_sweep_continues_to_the_same_result(tmp_path):
    """Two points at a time, killed twice, give the same as one at a time."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    before = {}
    for target in (STEPS // 2, 3 * STEPS):
        process = start(killed, *GRID, "sweep.jobs=2", **OWN_SERVER)
        wait_until(lambda target=target: saved_steps(killed) >= target, process)
        pids = descendants(process.pid)
        process.kill()
        process.communicate(timeout=TIMEOUT_SECS)
        for pid in pids:
            wait_gone(pid)
        after = finished_runs(killed)
        assert before.items() <= after.items()  # finished runs have not changed
        before = after
    assert sweep(killed, "sweep.jobs=2") == sweep(undisturbed)
    assert before.items() <= finished_runs(killed).items()
    assert finished_runs(killed).keys() == finished_runs(undisturbed).keys()
    assert len(finished_runs(killed)) == 6


@pytest.mark.slow
def test_point_that_continues_has_the_bits_of_one_that_never_paused(tmp_path):
    searched, straight = tmp_path / "searched", tmp_path / "straight"
    searched.mkdir()
    straight.mkdir()
    command = [*SEARCH, "search=halving", *SEARCHES["halving"]]
    log = sweep(searched, command=command)["search.jsonl"].decode().splitlines()
    events = [json.loads(line) for line in log[1:]]
    assert [event["until"] for event in events if event["event"] == "continue"] == [8, None]
    (best,) = {event["number"] for event in events if event["event"] == "continue"}
    rate = next(event["values"] for event in events if event["number"] == best)
    overrides = [f"{key}={value}" for key, value in rate.items()]
    succeed(
        straight, *(word for word in SEARCH if word not in ("-m", "sweep.name=grid")), *overrides
    )
    (run,) = (straight / "runs").glob("softmax-*")
    assert_same_run(searched / "runs" / run.name, run)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("search", SEARCHES)
def test_killed_search_ends_with_the_same_table(tmp_path, search):
    """Its driver alone, or a process of a point and then the driver, five times in all."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    command = [*SEARCH, f"search={search}", *SEARCHES[search]]
    expected = sweep(undisturbed, command=command)
    for kill in range(5):
        process = start(killed, *command, **OWN_SERVER)
        lines = 2 * kill + 2
        wait_until(lambda lines=lines: num_events(killed) >= lines, process)
        wait_until(partial(descendants, process.pid), process)
        pids = descendants(process.pid)
        if kill % 2:  # a point alone, which restarts, and then the driver
            os.kill(pids[-1], signal.SIGKILL)
        process.kill()
        process.communicate(timeout=TIMEOUT_SECS)
        for pid in pids:
            wait_gone(pid)
    found = sweep(killed, command=command)
    for name in ("summary.txt", "summary.json", "search.jsonl"):
        assert found[name] == expected[name]
