"""Work and waits of processes that run every step together; the clock is set by the tests."""

import pytest

from trainer.engine import worker_clock
from trainer.engine.worker_clock import ExchangeTime, WorkerClock
from trainer.runs.ledger import WorkerRecord, WorkerTime

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
    monkeypatch.setattr(worker_clock, "time", fake)
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
