"""What a training reports: its lines, its waits, and summaries read with TensorBoard."""

import itertools
import json
import logging
import math

import pytest

from tests.support.training import engine
from trainer.cli.compose import compose
from trainer.cluster.messages import Evaluated
from trainer.config.directions import Directions
from trainer.engine import reporter
from trainer.engine.reporter import ExchangeTime, ResultLines, WorkerClock
from trainer.runs.ledger import WorkerRecord, WorkerTime


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_graph_call_ends_at_inspected_and_profiled_steps(tmp_path):
    built = engine(
        tmp_path, "summary.every_steps=8", "summary.histograms=3", "summary.images=5",
        "summary.profile.start=1", "summary.profile.steps=6", "train.steps_per_loop=8",
    )  # fmt: skip
    run = built.loop.run
    counts = []
    built.loop.run = lambda iterator, count: counts.append(int(count)) or run(iterator, count)
    assert built.train(lambda: False)
    assert list(itertools.accumulate(counts)) == [1, 3, 5, 6, 7, 8]


def test_results_are_a_line_for_the_user_and_the_tutorials_line_in_the_log(tmp_path, caplog):
    every = ["train.steps_per_epoch=4", "summary.every_steps=2", "evaluate.every_steps=2"]
    messages = []
    for steps in (8, 12):  # the second continues
        with caplog.at_level(logging.INFO, "trainer.cluster.messages"):
            run = engine(tmp_path, *every, f"train.steps={steps}", receive=messages.append)
            run.train(lambda: False)
    shown = [message.text for message in messages if isinstance(message, Evaluated)]
    tests = [line for line in lines(tmp_path) if line["split"] == "test"]
    best = 0.0
    for line, test in zip(shown, tests, strict=True):
        assert f" test {test['loss']:.4f} {test['accuracy']:.3f}" in line
        assert line.endswith("best") == (test["accuracy"] > best)
        best = max(best, test["accuracy"])
    windows = [line for line in lines(tmp_path) if line["split"] == "train"]
    ends = zip(windows[::2], windows[1::2], strict=True)
    # A line at the end of an epoch is about all of it.
    means = [{name: (a[name] + b[name]) / 2 for name in ("loss", "accuracy")} for a, b in ends]
    assert [text for text in caplog.messages if text.startswith("Epoch: ")] == [
        f"Epoch: {epoch}, accuracy: {mean['accuracy']:f}, train_loss: {mean['loss']:f}."
        for epoch, mean in enumerate(means)
    ]


def result_lines(metric="accuracy", **directions):
    directions = Directions({"loss": "min", **directions}, metric)
    return ResultLines(compose(["train.epochs=30"]), 337, "test", ["loss", "accuracy"], directions)


def evaluated(accuracy, loss=2.1137):
    return {"loss": loss, "accuracy": accuracy, "recall/cat": 0.5}


def test_best_is_that_of_all_attempts():
    shown = result_lines("loss")
    shown.recall([evaluated(0.5, 1.5), evaluated(0.5, math.nan), evaluated(0.5, 0.5)])
    marks = [shown.line(9, None, None, evaluated(0.5, loss)) for loss in (0.6, 0.5, math.nan, 0.4)]
    assert [mark.endswith("best") for mark in marks] == [False, False, False, True]
    assert not result_lines().line(9, None, None, evaluated(0.5)).endswith("best")


NAMES = ["worker-0", "worker-1"]


class Group:
    """The second of two processes; the first has measured `others`."""

    def __init__(self, others=(0, 0, 0), count=2):
        self.count = count
        self.others = [round(1e6 * secs) for secs in others]

    def gather(self, *values):
        return [self.others, list(values)]


class Time:
    def __init__(self):
        self.now = 100.0
        self.exchanged = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still."""
    fake = Time()
    monkeypatch.setattr(reporter, "time", fake)
    return fake


def run_interval(own, clock, *, exchanged):
    """Wait a second for the others, and work for five, in which gradients are exchanged."""
    with own.waiting():
        clock.now += 1.0
    with own.working():
        clock.now += 5.0
        clock.exchanged += exchanged
    clock.now += 50.0  # evaluation


@pytest.mark.parametrize("travel", [0.0, 0.25])
def test_record_has_work_and_wait_of_every_process(clock, travel):
    """The least time of any process is that of the gradient's travel, which is no wait."""
    exchange = ExchangeTime(lambda: clock.exchanged, includes_travel=travel > 0)
    own = WorkerClock(Group((6.0, 0.5, 0.25)), NAMES, exchange)
    run_interval(own, clock, exchanged=2.0)
    assert own.end(10).times == {
        "worker-0": WorkerTime(5.75 + travel, 0.75 - travel, 10),
        "worker-1": WorkerTime(3.0 + travel, 3.0 - travel, 10),
    }


def test_compilation_is_left_out(clock):
    own = WorkerClock(Group(), NAMES)
    with own.working():
        clock.now += 60.0
        own.begin(1)
        clock.now += 0.5
    assert own.end(3).times["worker-1"] == WorkerTime(0.5, 0.0, 2)


@pytest.mark.parametrize(("count", "step"), [(2, 0), (1, 10)])
def test_interval_without_a_step_and_single_process_have_no_record(clock, count, step):
    own = WorkerClock(Group(count=count), NAMES)
    run_interval(own, clock, exchanged=0.0)
    assert own.end(step) == WorkerRecord()
