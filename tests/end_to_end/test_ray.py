"""Runs on a real Ray cluster of two hosts: disturbed in every way, they end as one never was."""

import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fault_schedules import hold
from tests.support.marks import first_only
from tests.support.processes import (
    OPTIONS,
    ROOT,
    final_variables,
    finished,
    log,
    only_run,
    wait_until,
    worker_pids,
)
from tests.support.ray_hosts import RayCluster, why_not
from tests.support.root_hosts import running
from tests.support.training import assert_same_bits
from trainer.runs import process_status

SECS = 1200  # a busy machine may need several starts of a node, see ray_hosts
# With shards the bits do not depend on the number of workers.
COMMAND = [
    "model=softmax",  # compiles fast: each fault is followed by a start
    *(option for option in OPTIONS if not option.startswith("model.")),
    *("strategy=multi_worker", "batch.shards=2"),
]
STEPS = (4, 8, 12, 16, 20)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"no Ray: {why_not()}"),
]


@pytest.fixture(scope="module")
def cluster():
    with running(RayCluster()) as cluster:
        yield cluster


@pytest.fixture
def straight():
    """A run in local processes that nothing has disturbed."""
    return finished(*COMMAND)


def actors(cluster):
    """Return the processes of actors on the hosts."""
    pids = []
    for pid in [*cluster.pids("n1"), *cluster.pids("n2")]:
        with suppress(OSError):  # it has ended
            if b"ray::RayHost" in Path(f"/proc/{pid}/cmdline").read_bytes():
                pids.append(pid)
    return pids


class Job:
    """A command on the head, and what is done to it."""

    def __init__(self, cluster, directory, steps, *options):
        self.cluster = cluster
        self.directory = directory
        self.command = [
            *(sys.executable, str(ROOT / "train.py"), *COMMAND),
            *("launch=ray", "launch.ray.timeout_secs=900", *options),
        ]
        if steps:
            self.command.append(hold(directory, directory, steps))
        self.begin()

    def begin(self):
        self.process = self.cluster.begin(*self.command, cwd=self.directory)

    @property
    def output(self):
        return (self.directory / "output").read_text()

    def wait_for_step(self, step):
        reached = (self.directory / f"reached-{step}").exists
        try:
            problem = f"step {step} is not reached"
            wait_until(reached, self.process, problem=problem, secs=SECS)
        except AssertionError as error:
            raise AssertionError(self.output) from error

    def restart(self, codes):
        """Wait for the end of the command, and of its processes; then start it again."""
        assert self.process.wait(SECS) in codes, self.output
        wait_until(lambda: not worker_pids(self.directory), problem="orphans")
        self.begin()

    def places(self):
        (status,) = process_status.read(only_run(self.directory)).values()
        return {(process.host, process.phase) for process in status.processes}

    def lost_process(self, dice):
        pids = actors(self.cluster)
        assert len(pids) == 2, pids
        os.kill(dice.choice(pids), signal.SIGKILL)

    def lost_node(self, dice):
        self.cluster.kill("n2")
        self.cluster.start_node("n2")

    def lost_command(self, dice):
        self.process.kill()
        self.restart({-signal.SIGKILL})

    def finish(self):
        assert self.process.wait(SECS) == 0, self.output
        assert worker_pids(self.directory) == {}
        wait_until(lambda: not actors(self.cluster), problem="orphans")
        return only_run(self.directory)


FAULTS = (Job.lost_process, Job.lost_node, Job.lost_command)


def schedules():
    """Return three schedules: the step of a fault, the fault, and dice."""
    dice = random.Random(19)
    return [
        pytest.param(dice.choice(STEPS), fault, random.Random(number), id=fault.__name__)
        for number, fault in enumerate(FAULTS)
    ]


@pytest.mark.parametrize(("step", "fault", "dice"), first_only(schedules()))
def test_run_with_fault_ends_as_local_one_without(cluster, straight, tmp_path, step, fault, dice):
    job = Job(cluster, tmp_path, [step])
    try:
        job.wait_for_step(step)
        fault(job, dice)
        run_dir = job.finish()
    finally:
        job.process.kill()
        job.process.wait(SECS)
    assert_same_bits(final_variables(straight), final_variables(run_dir))
    assert [line for line in log(run_dir) if line["split"] == "test"] == [
        line for line in log(straight) if line["split"] == "test"
    ]


@pytest.mark.long
def test_elastic_run_shrinks_and_grows_with_the_cluster(cluster, straight, tmp_path):
    elastic = ["launch.ray.min_workers=1", "launch.ray.rejoin_secs=20"]
    job = Job(cluster, tmp_path, [8, 16], *elastic)
    try:
        job.wait_for_step(8)
        wait_until(lambda: job.places() == {("n1", "evaluate"), ("n2", "evaluate")})
        cluster.kill("n2")
        job.wait_for_step(16)
        assert "warning: continuing with 1 of 2 workers" in job.output
        cluster.start_node("n2")
        os.kill(actors(cluster)[0], signal.SIGKILL)
        run_dir = job.finish()
    finally:
        job.process.kill()
        job.process.wait(SECS)
        if not cluster.pids("n2"):
            cluster.start_node("n2")
    assert "continuing with all 2 workers" in job.output
    assert job.output.count("step  4/24 ") == 1
    assert (run_dir / "logs" / "worker-1.log").stat().st_size > 0
    assert_same_bits(final_variables(straight), final_variables(run_dir))
