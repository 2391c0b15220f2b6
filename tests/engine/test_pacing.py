"""The number of steps in a graph call, and the interval between two saves."""

import math
from types import SimpleNamespace

import pytest

from trainer.cluster.messages import Channel
from trainer.config.schema import Checkpoint
from trainer.engine import pacing
from trainer.engine.pacing import (
    AutoTimer,
    StepPacer,
    Timer,
    failure_interval_secs,
    make_save_timer,
    optimal_secs,
)
from trainer.runs.ledger import CATEGORIES, Ledger, TimeSummary

DAY = 86_400.0


@pytest.fixture
def now(monkeypatch):
    """What the clock says, in a list of one."""
    now = [0.0]
    monkeypatch.setattr(pacing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_pacer_doubles_after_short_calls_and_halves_after_long_ones():
    pacer = StepPacer("auto")
    pacer.record(1, 9.0)
    counts = []
    for secs in (0.1, 0.2, 0.49, 0.5, 2.0, 2.1, 5.0, 5.0, 5.0):
        pacer.record(pacer.count, secs)
        counts.append(pacer.count)
    assert counts == [2, 4, 8, 8, 8, 4, 2, 1, 1]


def test_pacer_does_not_double_after_call_cut_short_by_event():
    pacer = StepPacer("auto")
    for count, secs in ((1, 9.0), (1, 0.1), (1, 0.1)):
        pacer.record(count, secs)
    assert pacer.count == 2
    pacer.record(1, 3.0)
    assert pacer.count == 1


@pytest.mark.parametrize(
    ("save_secs", "failure_secs"), [(0.1, 600.0), (1.0, DAY), (30.0, 3600.0), (60.0, 300.0)]
)
def test_interval_minimizes_the_expected_time_of_a_run(save_secs, failure_secs):
    """Daly's model: exponential failures, also during saves and while lost work is repeated."""

    def expected_secs(secs):
        return math.expm1((secs + save_secs) / failure_secs) / secs

    best = min(range(1, 40_000), key=lambda tenths: expected_secs(tenths / 10)) / 10
    assert optimal_secs(save_secs, failure_secs) == pytest.approx(best, rel=0.01, abs=0.1)


def test_save_that_takes_longer_than_the_time_between_failures_follows_each_of_them():
    assert optimal_secs(100.0, 40.0) == 40.0


def test_time_between_failures_is_a_day_at_first_and_soon_what_the_run_shows():
    assert failure_interval_secs(spent()) == DAY
    assert failure_interval_secs(spent(failures=10, wall_secs=3600.0)) < 720.0
    assert failure_interval_secs(spent(failures=10, wall_secs=10 * DAY)) > 0.99 * DAY


def spent(saves=0, save_secs=0.0, failures=0, wall_secs=0.0):
    secs = dict.fromkeys(CATEGORIES, 0.0)
    secs |= {"save": saves * save_secs, "step": wall_secs - saves * save_secs}
    return TimeSummary(secs, 1, failures=failures, saves=saves)


@pytest.mark.parametrize(
    ("summary", "secs"),
    [
        (spent(), 10.0),  # what a save takes is not known
        (spent(2, 0.01, 0, 60.0), 42.0),
        (spent(2, 0.01, 40, 1200.0), 10.0),  # 5 s are optimal
        (spent(2, 0.5, 40, 1200.0), 50.0),  # a hundred times a save
        (spent(2, 90.0, 0, 60.0), 3600.0),
    ],
)
def test_automatic_interval_keeps_its_limits(now, summary, secs):
    timer = AutoTimer(lambda: summary, lambda line: None)
    now[0] = 0.98 * secs
    assert not timer.due()
    now[0] = 1.02 * secs
    assert timer.due()


def test_interval_follows_the_ledger_after_each_save_and_is_shown_once(tmp_path, now):
    ledger = Ledger(tmp_path, clock=lambda: now[0])
    lines = []
    timer = AutoTimer(ledger.summary, lines.append)

    def save(secs):
        ledger.mark("save", 1)
        now[0] += secs
        timer.restart()
        ledger.mark("train", 1)
        began = now[0]
        while not timer.due():
            now[0] += 1.0
        return now[0] - began

    ledger.mark("train", 0)
    assert lines == []
    assert save(1.0) == pytest.approx(413, abs=3)
    assert save(3.0) == pytest.approx(math.sqrt(2) * 413, rel=0.1)  # they take 2 s, on average
    (line,) = lines
    assert line.startswith("Saving at least every 6:55 min (checkpoint.every_secs=auto): a")


def test_chief_alone_has_an_automatic_timer(tmp_path):
    checkpoint = Checkpoint(every_secs="auto")
    ledgers = [Ledger(tmp_path), Ledger(tmp_path, writes=False)]
    timers = [make_save_timer(checkpoint, ledger, Channel(print)) for ledger in ledgers]
    assert [type(timer) for timer in timers] == [AutoTimer, Timer]
