"""A process is killed, and the attempt that was started ahead takes over."""

import re

import pytest

from tests.support.processes import (
    assert_same_run,
    finished,
    only_run,
    succeed,
    wait_gone,
    worker_pids,
)

OPTIONS = [
    "model=softmax", "dataset=digits", "strategy=multi_worker", "train.steps=60",
    "train.epochs=null", "train.steps_per_loop=1", "batch.global_size=16",
    "evaluate.every_epochs=null", "evaluate.every_steps=20", "summary.every_steps=5",
]  # fmt: skip


@pytest.mark.slow
def test_standby_takes_over_and_the_run_ends_with_the_same_bits(tmp_path):
    kill = "+fault.kill={action:kill,process:worker-1,phase:step,at:40}"
    out = succeed(tmp_path, *OPTIONS, "restart.standby=always", kill)
    assert re.search(r"Continuing from step \d+ \(memory of", out)
    run_dir, straight = only_run(tmp_path), finished(*OPTIONS)
    # The standby that follows has never taken over.
    assert (run_dir / "logs" / "worker-0.log").read_text().count(": taking over") == 1
    assert_same_run(run_dir, straight)
    for pid in worker_pids(tmp_path).values():
        wait_gone(pid)
