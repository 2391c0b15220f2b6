"""A local cluster that loses workers and gets them back ends like one device, to the bit."""

import json
import os
import random

import pytest

from tests.support.command_line import run_here
from tests.support.marks import first_only
from tests.support.processes import OPTIONS, final_variables, finished, only_run, run
from tests.support.training import assert_same_bits
from trainer.runs.ledger import Ledger

pytestmark = pytest.mark.slow

NUM_SCHEDULES = int(os.environ.get("STEADFAST_SCHEDULES", "2"))
SHARDS = [*OPTIONS, "batch.shards=8", "train.clip_norm=0.5", "checkpoint.every_steps=2"]
# Each loss is followed by a start, most of which is tracing.
TINY = [
    "model=softmax", "~model.l2", "model._target_=tests.support.toy_models.tiny",
    "+model.synchronized=false",
    *(option for option in SHARDS if not option.startswith("model.")),
]  # fmt: skip
ELASTIC = [
    "strategy=multi_worker", "strategy.workers=4", "strategy.min_workers=1",
    "strategy.rejoin_secs=0", "restart.max_restarts=9",
]  # fmt: skip
# Three cannot share eight shards in one tree, so two of them train.
THERE_AND_BACK = [
    ("lose", 1, 3), ("return", 1, 6), ("lose", 3, 9), ("lose", 1, 12), ("lose", 0, 15),
    ("return", 3, 17), ("return", 1, 18), ("return", 0, 19), ("return", 2, 19),
]  # fmt: skip


def faults(schedule):
    return [
        f"+fault.f{number}={{action:{action},process:worker-{place},phase:step,at:{at}}}"
        for number, (action, place, at) in enumerate(schedule)
    ]


def random_schedule(seed):
    """Return losses and returns of workers; at least one can be had at any time."""
    draws = random.Random(f"elastic-{seed}")
    away = []
    schedule = []
    for at in sorted(draws.sample(range(2, 23), 6)):
        if len(away) == 3 or (away and draws.random() < 0.5):
            place = away.pop(draws.randrange(len(away)))
            schedule.append(("return", place, at))
        else:
            # Of the processes of that moment, if there are so many.
            place = draws.randrange(4 - len(away))
            away.append(place)
            schedule.append(("lose", place, at))
    return schedule


@pytest.mark.parametrize(
    "schedule", first_only(["once", "there and back", *range(1, NUM_SCHEDULES)])
)
def test_run_that_loses_and_regains_workers_ends_like_one_device(tmp_path, schedule):
    fixed = {"once": THERE_AND_BACK[:2], "there and back": THERE_AND_BACK}
    events = fixed.get(schedule) or random_schedule(schedule)
    code, out, err = run(tmp_path, *TINY, *ELASTIC, *faults(events))
    assert code == 0, out + err
    run_dir = only_run(tmp_path)
    sizes = [size for _, size in Ledger(run_dir, writes=False).summary().sizes]
    assert (sizes[0], min(sizes) < 4) == (4, True), out
    if schedule == "there and back":
        assert sizes == [4, 2, 4, 2, 1, 2, 4], out
    if schedule == "once":
        assert sizes == [4, 2, 4], out
    assert json.loads((run_dir / "result.json").read_text())["step"] == 24
    one_device = finished(*TINY, "strategy=one_device")
    assert_same_bits(final_variables(run_dir), final_variables(one_device))


@pytest.mark.long
def test_run_ends_with_one_line_if_too_few_workers_are_left(tmp_path):
    both = ["strategy.workers=2", "strategy.min_workers=2"]
    code, out, err = run(tmp_path, *TINY, *ELASTIC, *both, *faults([("lose", 1, 4)]))
    assert code == 1, out + err
    assert (
        "error: worker-1 is lost, and no number of workers that is left is at least "
        "strategy.min_workers and divides the batch; the same command continues when there are "
        "more" in err.splitlines()
    )
    code, out, err = run(tmp_path, f"resume={only_run(tmp_path)}")
    assert code == 0, out + err


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["strategy.min_workers=5"], "strategy.min_workers (5) must be at most strategy.workers"),
        (
            ["batch.per_replica=4", "batch.global_size=null"],
            "strategy.min_workers (1) needs a batch that is the same with fewer workers; use "
            "batch.global_size",
        ),
    ],
)
def test_impossible_elastic_run_is_refused(tmp_path, monkeypatch, overrides, problem):
    monkeypatch.chdir(tmp_path)
    outcome = run_here(*ELASTIC, *overrides)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {problem}")
