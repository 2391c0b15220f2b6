"""Figures of a comparison of modes, from runs that the tests make up."""

import json

import pytest

from tests.cli.report.test_page import Page
from trainer.cli.report.data import Run
from trainer.cli.report.mode_comparison import Comparison, ModeRun
from trainer.cli.report.page import render
from trainer.runs.ledger import TimeSummary
from trainer.runs.status import RunStatus, State
from trainer.runs.time_tally import CATEGORIES
from trainer.runs.worker_times import STALENESS_EDGES, WorkerRecord, WorkerTime

NO_UPDATES = [0] * (len(STALENESS_EDGES) - 2)


def mode_run(label, secs, *, is_async=False, is_slow=False, times=(), staleness=()):
    """Return a run of 100 steps of 10 examples that took so many seconds."""
    curves = {
        ("train", "train_secs"): [(50, secs / 2), (100, secs)],
        ("train", "loss"): [(50, 1.5), (100, 0.7)],
        ("test", "loss"): [(25, 2.0), (50, 1.0), (100, 0.5)],
        ("test", "accuracy"): [(25, 0.2), (50, 0.6), (100, 0.9)],
    }
    if is_async:
        curves[("train", "staleness_mean")] = [(50, 1.0), (100, 2.0)]
        curves[("train", "staleness_max")] = [(50, 4.0), (100, 3.0)]
    record = WorkerRecord(
        {f"worker-{number}": WorkerTime(*time) for number, time in enumerate(times)}, staleness
    )
    time = TimeSummary(dict.fromkeys(CATEGORIES, 0.0) | {"step": secs}, 1, [], record)
    outcome = RunStatus(State.DONE, 100, {"loss": 0.5, "accuracy": 0.9})
    run = Run(f"runs/{label}", label, outcome=outcome, curves=curves, time=time)
    return ModeRun(run, is_async, is_slow, 10)


@pytest.fixture
def comparison():
    runs = [
        mode_run("sync", 8.0, times=[(8.0, 0.0, 100), (8.0, 0.0, 100)]),
        mode_run("async", 10.0, is_async=True, staleness=[50, 50, *NO_UPDATES]),
        mode_run("sync-slow", 40.0, is_slow=True, times=[(10.0, 30.0, 100), (40.0, 0.0, 100)]),
        mode_run("async-slow", 20.0, is_async=True, is_slow=True),
    ]
    return Comparison(runs, "worker-1 slowed down")


def test_seconds_at_a_step_are_interpolated():
    run = mode_run("a", 10.0)
    assert [run.secs_at(step) for step in (0, 25, 50, 75, 100, 200)] == [0, 2.5, 5, 7.5, 10, 10]


def test_runs_are_compared_at_the_time_of_the_faster_one(comparison):
    sync, asynchronous, sync_slow, async_slow = comparison.runs
    assert comparison.equal_secs(asynchronous) == 8.0
    assert asynchronous.value_at(8.0, "loss") == 1.0
    assert sync.value_at(8.0, "loss") == 0.5
    assert comparison.equal_secs(sync_slow) == 20.0
    assert sync_slow.value_at(20.0, "accuracy") == 0.6
    assert async_slow.value_at(20.0, "accuracy") == 0.9
    assert async_slow.value_at(1.0, "accuracy") is None


def test_table_has_a_row_for_each_run(comparison):
    head, *rows = comparison.table()
    assert " ".join(head.split()) == (
        "run samples test loss test accuracy time examples/s waiting staleness "
        "loss at equal time accuracy at equal time"
    )
    assert " ".join(rows[1].split()) == (
        "async 1,000 0.5000 0.9000 0:10 100 0 % 1.5, 4 at most 1.0000 0.6000"
    )
    assert "38 %" in rows[2]


def test_conclusions_say_what_a_slow_worker_costs(comparison):
    assert comparison.conclusions() == [
        "With worker-1 slowed down, sync trains at 20 % of its speed.",
        "With worker-1 slowed down, async trains at 50 % of its speed.",
        "sync-slow: worker-1 is the slowest: the others wait 75 % of the time for it.",
    ]


def test_file_and_page_have_every_run(comparison):
    content = json.loads(json.dumps(comparison.content()))
    assert content["runs"]["sync-slow"]["workers"]["worker-0"]["wait_secs"] == 30.0
    assert content["runs"]["async"]["staleness"]["updates"]["1"] == 50
    assert content["runs"]["async"]["at_equal_time"] == {"secs": 8.0, "loss": 1.0, "accuracy": 0.6}
    assert content["runs"]["async"]["curves"]["test loss"]["samples"][0] == [250, 2.0]
    page = Page(render([item.run for item in comparison.runs], "a title", comparison.sections()))
    assert {"a title", "Synchronous against asynchronous", "At equal samples", "Workers"} <= set(
        page.texts
    )
    assert {"sample", "second", "step"} <= set(page.texts)
