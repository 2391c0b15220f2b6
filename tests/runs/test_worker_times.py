"""Times of workers: shares, stragglers, histograms."""

import json

import pytest

from trainer.runs.ledger import (
    STALENESS_EDGES,
    Ledger,
    StragglerWatch,
    WorkerRecord,
    WorkerTime,
    is_clock_name,
    staleness_bins,
)


def record(*times, staleness=()):
    return WorkerRecord(
        {f"worker-{number}": WorkerTime(*time) for number, time in enumerate(times)}, staleness
    )


def counts(**bins):
    values = [0] * len(STALENESS_EDGES)
    for number, count in bins.items():
        values[int(number[1:])] = count
    return values


def test_others_wait_for_the_worker_that_waits_least():
    slow = record((2.0, 8.0, 100), (9.0, 1.0, 100), (4.0, 6.0, 100))
    assert slow.straggler() == "worker-1 is the slowest: the others wait 60 % of the time for it"
    assert slow.wait_fraction == pytest.approx(0.5)


@pytest.mark.parametrize(
    "even",
    [
        record(),
        record((5.0, 5.0, 100), (4.0, 6.0, 100)),
        record((5.0, 0.0, 100), (6.0, 0.0, 120), staleness=counts(_0=220)),
        record((0.0, 5.0, 0), (5.0, 0.0, 100), staleness=counts(_0=100)),
    ],
)
def test_even_workers_have_no_straggler(even):
    assert even.straggler() is None


def test_nobody_waits_for_a_slow_asynchronous_worker():
    slow = record((5.0, 0.0, 500), (5.0, 0.0, 50), staleness=counts(_1=550))
    assert slow.straggler() == (
        "worker-1 is the slowest: 100 ms a step, the others 10 ms; nobody waits for it"
    )


def test_straggler_is_told_once_and_after_enough_time():
    watch = StragglerWatch()
    slow, even = record((1.0, 2.0, 10), (3.0, 0.0, 10)), record((3.0, 0.0, 10), (3.0, 0.0, 10))
    told = [watch.line(item) for item in [slow, slow, slow, slow, even, even, slow, slow]]
    assert [line is not None for line in told] == [False, True, *[False] * 5, True]


def test_log_has_seconds_of_each_worker():
    scalars = record((1.0, 2.0, 10), (3.0, 0.0, 10)).scalars()
    assert scalars == {
        "worker_0_step_secs": 1.0,
        "worker_0_wait_secs": 2.0,
        "worker_1_step_secs": 3.0,
        "worker_1_wait_secs": 0.0,
        "wait_fraction": pytest.approx(1 / 3),
    }
    assert all(is_clock_name(name) for name in scalars)
    assert not is_clock_name("loss")
    assert WorkerRecord().scalars() == {}


def test_ledger_adds_up_what_workers_did_over_all_attempts(tmp_path):
    for attempt in range(2):
        ledger = Ledger(tmp_path)
        ledger.mark("start", workers=2)
        ledger.mark("train", 10 * attempt)
        ledger.record_workers(record((1.0, 2.0, 5), (3.0, 0.0, 5), staleness=counts(_1=10)))
        ledger.record_workers(record((1.0, 2.0, 5), (3.0, 0.0, 5), staleness=counts(_0=10)))
        ledger.mark("end", 10 * attempt + 10)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line.get("worker_times") for line in lines] == [
        *[None, None, {"worker-0": [2.0, 4.0, 10], "worker-1": [6.0, 0.0, 10]}] * 2
    ]
    summary = Ledger(tmp_path, writes=False).summary()
    assert summary.workers == record(
        (4.0, 8.0, 20), (12.0, 0.0, 20), staleness=counts(_0=20, _1=20)
    )
    result = summary.result()
    assert result["worker_times"]["worker-0"] == {"step_secs": 4.0, "wait_secs": 8.0, "steps": 20}
    assert result["staleness"]["1"] == 20
    bins = staleness_bins()
    assert (bins[0], bins[5], bins[-2], bins[-1]) == ("0", "6-7", "768-1023", "1024+")
    one = Ledger(tmp_path / "one").summary().result()
    assert {"worker_times", "staleness"}.isdisjoint(one)
    total = record((1.0, 2.0, 10)) + record((3.0, 4.0, 5), (1.0, 1.0, 5))
    assert total.times == record((4.0, 6.0, 15), (1.0, 1.0, 5)).times
