"""Jobs of a real Slurm of two hosts: disturbed in every way that it has, they end the same."""

import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fault_schedules import free, hold, schedules
from tests.support.marks import first_only
from tests.support.processes import (
    OWN_SERVER,
    ROOT,
    final_variables,
    log,
    only_run,
    run_program,
    worker_pids,
)
from tests.support.root_hosts import running
from tests.support.slurm import SlurmCluster, until, why_not
from tests.support.training import assert_same_bits

SECS = 600
SMALL = [
    "model=softmax", "batch.shards=2", "batch.global_size=16",
    "augment.crop=1", "train.steps=24", "train.ema_decay=0.9", "evaluate.every_steps=4",
    "checkpoint.every_steps=1000", "checkpoint.every_epochs=null", "restart.backoff_secs=0",
]  # fmt: skip
COMMAND = ["strategy=multi_worker", *SMALL]
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"})

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"no Slurm: {why_not()}"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(SlurmCluster(tmp_path_factory.mktemp("slurm"))) as cluster:
        yield cluster


def submit(cluster, directory, command):
    """Submit the script that the command writes; return the number of the job."""
    program = [sys.executable, ROOT / "train.py", "slurm", *command]
    script = run_program(*program, cwd=directory)
    (directory / "job.sh").write_text(script)
    return submit_again(cluster, directory)


def submit_again(cluster, directory):
    (variable,) = OWN_SERVER
    environment = f"--export=ALL,{variable}="
    text = cluster.run("n1", "sbatch", "--parsable", environment, "job.sh", cwd=directory)
    return text.strip()


def wait_for(path, cluster, job):
    def is_there():
        state = cluster.wait(job, lambda state: state in ("RUNNING", "COMPLETING", *ENDED), SECS)
        assert state not in ENDED, output(path.parent)
        return path.exists()

    until(is_there, problem=f"{path.name}: the job does not come to it")


def output(directory):
    """Return what a job has printed so far."""
    text = directory / "job.log"
    return text.read_text() if text.exists() else ""


def check_same_end(cluster, job, directory, straight):
    """Check that a job ends well, as one that was never disturbed, and leaves no process."""
    assert cluster.wait(job, ENDED.__contains__, SECS) == "COMPLETED", output(directory)
    until(lambda: not cluster.orphans(), problem="orphans", secs=60)
    assert worker_pids(directory) == {}
    assert_same_bits(final_variables(straight), final_variables(only_run(directory)))
    assert [line for line in log(only_run(directory)) if line["split"] == "test"] == [
        line for line in log(straight) if line["split"] == "test"
    ]


@pytest.fixture(scope="module")
def straight(cluster, tmp_path_factory):
    directory = tmp_path_factory.mktemp("straight")
    job = submit(cluster, directory, [*COMMAND, "--output=job.log"])
    assert cluster.wait(job, ENDED.__contains__, SECS) == "COMPLETED", output(directory)
    # The chief prints the progress, and the other nothing.
    lines = output(directory).splitlines()
    for start in ("step  4/24  ", "Done: step 24, ", "Run directory: "):
        assert len([line for line in lines if line.startswith(start)]) == 1, lines
    return only_run(directory)


def requeued(cluster, job, disturb):
    """Disturb a job, and wait until Slurm has started it again, or will."""
    num_restarts = cluster.field(job, "Restarts")
    disturb()
    until(lambda: cluster.field(job, "Restarts") != num_restarts, problem="not requeued")


def reach_time_limit(cluster, job):
    """Bring the time limit of a job near, until it has been started again."""
    hours, minutes, _ = cluster.field(job, "RunTime").split(":")
    # In one to two minutes: the signal is due at once. Slurm looks every 30 s.
    limit = f"timelimit={60 * int(hours) + int(minutes) + 2}"
    requeued(cluster, job, lambda: cluster.update(job, limit))
    cluster.update(job, "timelimit=60")


def preempt(cluster, job):
    """Have a job of a partition of higher priority take the nodes, until it is done."""
    urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
    requeued(cluster, job, lambda: cluster.run("n1", "sbatch", *urgent, "--wrap", "true"))


def lose_node(cluster, job):
    """Have a node fail; bring it back when its jobs have been requeued."""
    cluster.lose("n2")
    requeued(cluster, job, lambda: cluster.declare("n2", "down"))
    cluster.connect("n2")


def command_pids(directory):
    """Return the process that each task of the job in a directory has started."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_text().split("\0")
            is_ours = (process / "cwd").readlink() == directory
            if words[1:2] == [str(ROOT / "train.py")] and is_ours:
                pids.append(int(process.name))
    return pids


def kill(moment, pids):
    os.kill(moment.choice(pids), signal.SIGKILL)


FAULTS = {
    "time limit": lambda cluster, job, moment, pids: reach_time_limit(cluster, job),
    "preemption": lambda cluster, job, moment, pids: preempt(cluster, job),
    "lost node": lambda cluster, job, moment, pids: lose_node(cluster, job),
    "lost process": lambda cluster, job, moment, pids: kill(moment, pids),
}


def wait_until_held(cluster, job, directory, path):
    """Wait until a run has written a file; return its job, a new one if the first has failed."""
    try:
        wait_for(path, cluster, job)
    except AssertionError:
        if cluster.state(job) not in ENDED:
            raise
        # The command itself was killed, or has saved for SIGINT: the same job continues.
        job = submit_again(cluster, directory)
        wait_for(path, cluster, job)
    return job


# All where the run is held: Slurm takes a second to act, in which the run could reach the next.
HELD = [[replace(fault, delay_secs=0.0) for fault in row] for row in schedules(list(FAULTS), 2)]


@pytest.mark.parametrize("faults", first_only(HELD), ids=lambda row: ", ".join(map(str, row)))
def test_job_with_a_schedule_of_faults_ends_the_same(cluster, straight, tmp_path, faults):
    words = [
        *COMMAND,
        hold(tmp_path, tmp_path, [fault.step for fault in faults]),
        "checkpoint.every_steps=3",
    ]
    job = submit(cluster, tmp_path, [*words, "--output=job.log", "--time=60"])
    for fault in faults:
        job = wait_until_held(cluster, job, tmp_path, tmp_path / f"reached-{fault.step}")
        pids = sorted([*worker_pids(tmp_path).values(), *command_pids(tmp_path)])
        assert len(pids) == 4, pids
        FAULTS[fault.kind](cluster, job, fault.moment, pids)
        free(tmp_path, fault)
    if cluster.wait(job, ENDED.__contains__, SECS) != "COMPLETED":
        job = submit_again(cluster, tmp_path)
    check_same_end(cluster, job, tmp_path, straight)
