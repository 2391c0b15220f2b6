"""A user-defined loop in real processes: killed, continued, to the bit."""

import re

import pytest

from tests.support.processes import ROOT, only_run, succeed
from trainer.launch.verify import differences, read

LOOP = (
    "loop._target_=tests.support.loops.everything", "train.steps=8", "checkpoint.every_steps=3",
    "strategy=multi_worker", "strategy.compress=float16", "writers=[jsonl]",
    "restart.backoff_secs=0", "checkpoint.memory_every_steps=1",
)  # fmt: skip


@pytest.mark.slow
def test_cluster_that_lost_a_worker_ends_with_the_bits_of_an_undisturbed_one(tmp_path):
    outcomes = []
    for fault in ([], ["+fault.kill={action:kill,process:worker-1,phase:step,at:5}"]):
        directory = tmp_path / f"run-{len(outcomes)}"
        directory.mkdir()
        out = succeed(directory, *LOOP, *fault, PYTHONPATH=str(ROOT))
        outcomes.append(read(only_run(directory)))
        assert bool(re.search(r"Continuing from step [45] \(memory of", out)) == bool(fault)
    straight, killed = outcomes
    assert differences(straight, killed) == []
    assert [name for _, name in killed.kills] == ["kill (worker-1 at step 5)"]
