"""One slow worker of a real cluster: who waits for it, and how long, in all that a run writes."""

import json

import pytest

from tests.support.marks import first_only
from tests.support.processes import only_run, succeed

DELAY_SECS = 0.1
STEPS = 20
LATE = [
    "model=softmax", "train.steps=21", "batch.global_size=32", "summary.every_steps=7",
    "evaluate.every_epochs=null", "evaluate.every_steps=21", "checkpoint.every_epochs=null",
    f"+fault.late={{action:slow,process:worker-1,delay_secs:{DELAY_SECS}}}",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("exchange", first_only(["direct", "ring"]))
def test_others_wait_for_a_slow_worker_with_any_exchange(tmp_path, exchange):
    options = ["strategy=multi_worker", f"strategy.communication={exchange}"]
    out = succeed(tmp_path, *LATE, *options)
    assert "fault late: worker-1 sleeps 0.1 s each time from now on, at step 1" in out
    run_dir = only_run(tmp_path)
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    lines = [line for line in lines if line["split"] == "train"]
    waited = sum(line["worker_0_wait_secs"] for line in lines)
    assert waited > STEPS * DELAY_SECS / 2
    assert sum(line["worker_1_step_secs"] for line in lines) > STEPS * DELAY_SECS / 2
    times = json.loads((run_dir / "result.json").read_text())["worker_times"]
    assert times["worker-0"]["wait_secs"] == pytest.approx(waited, abs=0.01)
    # The first step was compiled, and is not counted.
    assert times["worker-1"]["steps"] == STEPS
