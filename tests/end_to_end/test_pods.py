"""Runs in emulated pods: lost and stopped, they end with the same bits."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.fault_schedules import HOLD, free, hold, schedules
from tests.support.pods import Controller, job_of, pods_of
from tests.support.processes import OPTIONS, assert_same_run, finished, only_run, worker_pids

# A small model, because each pod compiles it anew. With shards the bits do not depend on the number
# of pods.
TRAINING = [
    "model=mlp", "model.hidden=[8]", "model.dropout=0.3", "writers=[jsonl]",
    *(option for option in OPTIONS if not option.startswith(("model.", "augment."))),
    "strategy=multi_worker", "batch.shards=2",
]  # fmt: skip
IMAGE = {"hold.py": HOLD}
BOTH_WAIT = {"worker-0": "join", "worker-1": "join"}

pytestmark = pytest.mark.slow


@pytest.fixture
def straight():
    """A run in local processes that nothing has disturbed."""
    return finished(*TRAINING, "strategy.workers=2")


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """The folder that the claim is mounted at; the working directory is an empty project."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def phases(shared):
    """Return the phase of each process, as the commands in the pods tell it."""
    records = [json.loads(path.read_text()) for path in shared.glob("runs/*/logs/status-*.json")]
    return {
        process["name"]: process["phase"] for record in records for process in record["processes"]
    }


def check_same_end(job, shared, straight):
    """Check that a Job completes with the bits of a run never disturbed, and nothing is left."""
    job.wait_for(job.is_done, "completion")
    assert worker_pids(shared) == {}
    assert_same_run(only_run(shared), straight)


def preempt(job, shared, fault):
    """Stop one pod; the other one saves and ends too."""
    fault.moment.choice(job.pods).terminate()


def lose_process(job, shared, fault):
    """Kill a worker; the command in its pod starts it again."""
    os.kill(fault.moment.choice(sorted(worker_pids(shared).values())), signal.SIGKILL)


def lose_pod(job, shared, fault):
    """Kill a pod; the next one has another address, and an empty disk."""
    fault.moment.choice(job.pods).kill()


def lose_pod_and_names(job, shared, fault):
    """Kill a pod; the address of the next one is not known before both wait for each other."""
    job.source.resolve(False)
    lose_pod(job, shared, fault)
    free(shared, fault)
    job.wait_for(lambda: phases(shared) == BOTH_WAIT, "waiting for the DNS")
    job.source.resolve()


FAULTS = {
    "preemption": preempt,
    "lost process": lose_process,
    "lost pod": lose_pod,
    "late name": lose_pod_and_names,
}
KILLED = {"lost pod", "late name"}


@pytest.mark.long
@pytest.mark.parametrize(
    "faults", schedules(list(FAULTS), 2), ids=lambda row: ", ".join(map(str, row))
)
def test_job_with_a_schedule_of_faults_ends_the_same(shared, tmp_path, straight, faults):
    held = hold(Path.cwd(), shared, [fault.step for fault in faults])
    objects = job_of([*TRAINING, held, f"runs_dir={shared / 'runs'}"], 2)
    with pods_of(tmp_path / "pods", objects, IMAGE) as pods:
        pods.resolve()
        job = Controller(pods, objects[-1])
        for fault in faults:
            job.wait_for((shared / f"reached-{fault.step}").exists, f"step {fault.step}")
            # The fault before may be still at work, if the run was this far when it happened.
            job.wait_for(lambda: len(worker_pids(shared)) == 2, "two workers")
            # Where it is held next, a run would not wait for a name.
            if fault.delay_secs and fault.kind != "late name":
                free(shared, fault)
                time.sleep(fault.delay_secs)
            FAULTS[fault.kind](job, shared, fault)
            free(shared, fault)
        check_same_end(job, shared, straight)
        killed = [fault for fault in faults if fault.kind in KILLED]
        assert job.failures == [None] * len(killed), job.output()
