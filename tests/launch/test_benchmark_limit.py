"""What a benchmark has measured, and what to change first by its figures."""

from dataclasses import replace

import pytest

from trainer.launch.modes.benchmark import BenchmarkRecord, Size

TWO = Size(
    count=2,
    replicas=2,
    step_secs=0.010,
    examples_per_sec=12800.0,
    alone_step_secs=0.008,
    exchange_secs=0.0005,
    input_wait=0.1,
    processor_secs=0.009,
    gradient_bytes=4000,
    network_bytes=4100.0,
)
ONE = replace(TWO, count=1, replicas=1, examples_per_sec=8000.0, exchange_secs=None)
RECORD = BenchmarkRecord("multi_worker", "processes", 64, 3.0, sizes=[ONE, TWO])


def limit(**changes):
    return replace(RECORD, sizes=[ONE, replace(TWO, **changes)]).limit


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
    "neither": ({}, "nothing but the work itself: steps wait 20 % of the time"),
    "ceiling slower than the run": (
        {"alone_step_secs": 0.02, "input_wait": 0.0},
        "nothing but the work itself: steps wait 0 % of the time",
    ),
}


@pytest.mark.parametrize(("changes", "text"), CASES.values(), ids=CASES)
def test_limit_has_the_figure_that_says_so(changes, text):
    assert limit(**changes)["text"].startswith(text)


def test_advice_has_the_options_that_the_strategy_has():
    assert "strategy.compress" in limit(alone_step_secs=0.004)["text"]
    devices = replace(RECORD, sizes=[replace(TWO, alone_step_secs=0.004)], unit="devices")
    assert devices.limit["text"].endswith("exchange less often, with a larger batch.per_replica")


def test_content_has_what_follows_from_the_figures():
    content = RECORD.content()
    assert content["limit"] == RECORD.limit
    assert content["sizes"][1]["efficiency"] == 0.8
    assert content["sizes"][1]["speedup"] == 1.6
