"""What to change first, by the figures of a benchmark."""

from dataclasses import replace

import pytest

from trainer.launch.benchmark_limit import limit_of, stalls
from trainer.runs.benchmark_record import BenchmarkRecord, Size

SIZE = Size(
    count=2,
    replicas=2,
    step_secs=0.010,
    examples_per_sec=12800.0,
    alone_step_secs=0.0095,
    processor_secs=0.009,
    input_wait=0.0,
    gradient_bytes=4000,
    bound_bytes=4000.0,
    planned_bytes=4000.0,
    traffic="an all-reduce",
    network_bytes=None,
    latency_secs=0.0001,
    exchange_secs=0.0005,
    peak_memory_mib=300.0,
    gpu_memory_mib=None,
)
RECORD = BenchmarkRecord(
    "multi_worker", "processes", 64, 3.0, eager=False, sizes=[SIZE], kernels={"Conv2D": 0.006,
    "MatMul": 0.002}, gains={"batch": 1.02, "compile": 0.9},
)  # fmt: skip


def record(**changes):
    fields = {name: changes.pop(name) for name in ("gains", "eager", "kernels") if name in changes}
    return replace(RECORD, sizes=[replace(SIZE, **changes)], **fields)


CASES = {
    "input": ({"input_wait": 0.6}, "input: steps wait for their data 60 % of the time"),
    "communication": (
        {"alone_step_secs": 0.004},
        "communication: it takes 60 % of a step of 2 processes",
    ),
    "larger of both": (
        {"input_wait": 0.3, "alone_step_secs": 0.006},
        "communication: it takes 40 % of a step of 2 processes",
    ),
    "batch": (
        {"gains": {"batch": 1.8, "compile": 1.2}},
        "batch size: twice the examples on each replica (batch.per_replica=128) give 1.80 times "
        "the examples per second",
    ),
    "compile": (
        {"gains": {"batch": 1.1, "compile": 1.5}},
        "compile: one replica with jit=true gives 1.50 times the examples per second",
    ),
    "eager": (
        {"gains": {"compile": 9.0}, "eager": True},
        "compile: one replica with eager=false gives 9.00 times the examples per second",
    ),
    "kernels": (
        {},
        "nothing but the work itself: 75 % of the time of all kernels is Conv2D",
    ),
    "nothing known": (
        {"gains": {}, "kernels": {}},
        "nothing but the work itself: steps wait for nothing in 95 % of the time",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), CASES.values(), ids=CASES)
def test_limit_has_the_figure_that_says_so(changes, text):
    assert limit_of(record(**changes)).text.startswith(text)


def test_changes_are_tried_only_if_steps_wait_for_nothing():
    assert stalls(RECORD) is None
    assert stalls(record(input_wait=0.5)).name == "input"
    # A measured gain does not hide that steps wait.
    waiting = record(input_wait=0.5, gains={"batch": 3.0})
    assert limit_of(waiting).name == "input"


def test_advice_has_the_options_that_the_strategy_has():
    assert "strategy.compress" in limit_of(record(alone_step_secs=0.004)).text
    devices = replace(record(alone_step_secs=0.004), unit="devices")
    assert limit_of(devices).text.endswith("exchange less often, with a larger batch.per_replica")


def test_ceiling_that_is_slower_than_the_run_is_no_communication():
    assert stalls(record(alone_step_secs=0.02)) is None
    assert record(alone_step_secs=0.02).largest.communication == 0.0
