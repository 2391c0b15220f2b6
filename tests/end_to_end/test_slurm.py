"""Jobs of a real Slurm of two hosts: disturbed in every way that it has, they end the same."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from tests.support.processes import (
    OPTIONS,
    OWN_SERVER,
    ROOT,
    final_variables,
    log,
    only_run,
    pause,
    worker_pids,
)
from tests.support.slurm import NoSlurmError, slurm_cluster, why_not
from tests.support.training import assert_same_bits

SECS = 240
COMMAND = [
    *OPTIONS,
    "strategy=multi_worker",
    "checkpoint.every_steps=1000",
]
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"})

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"no Slurm: {why_not()}"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(slurm_cluster(tmp_path_factory.mktemp("slurm")))
        except NoSlurmError as error:
            pytest.skip(f"no Slurm: {error}")
        yield cluster


def submit(cluster, directory, *options):
    """Submit the script that the command writes; return the number of the job."""
    command = [*COMMAND, pause(directory, [4, 8, 12]), "--output=job.log", *options]
    script = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "slurm", *command],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECS,
        check=True,
    ).stdout
    (directory / "job.sh").write_text(script)
    (variable,) = OWN_SERVER
    environment = f"--export=ALL,{variable}="
    text = cluster.run("n1", "sbatch", "--parsable", environment, "job.sh", cwd=directory)
    return text.strip()


def wait_for(path, cluster, job):
    end = time.monotonic() + SECS
    while not path.exists():
        state = cluster.wait(job, lambda state: state in ("RUNNING", "COMPLETING", *ENDED), SECS)
        assert state not in ENDED, (path.parent / "job.log").read_text()
        assert time.monotonic() < end, f"{path.name}: the job does not come to it"
        time.sleep(0.2)


def check_same_end(cluster, job, directory, straight):
    """Check that a job ends well, as one that was never disturbed, and leaves no process."""
    text = directory / "job.log"
    assert cluster.wait(job, ENDED.__contains__, SECS) == "COMPLETED", text.read_text()
    assert worker_pids(directory) == {}
    assert_same_bits(final_variables(straight), final_variables(only_run(directory)))
    assert [line for line in log(only_run(directory)) if line["split"] == "test"] == [
        line for line in log(straight) if line["split"] == "test"
    ]


@pytest.fixture(scope="module")
def straight(cluster, tmp_path_factory):
    directory = tmp_path_factory.mktemp("straight")
    for step in (4, 8, 12):
        (directory / f"paused-{step}").touch()
    job = submit(cluster, directory)
    text = directory / "job.log"
    assert cluster.wait(job, ENDED.__contains__, SECS) == "COMPLETED", text.read_text()
    # The chief prints the progress, and the other nothing.
    lines = text.read_text().splitlines()
    for start in ("step 4: ", "Done: step 24, ", "Run directory: "):
        assert len([line for line in lines if line.startswith(start)]) == 1, lines
    return only_run(directory)


def test_job_that_is_requeued_preempted_and_cancelled_ends_the_same(cluster, straight, tmp_path):
    job = submit(cluster, tmp_path)
    wait_for(tmp_path / "paused-4", cluster, job)
    cluster.run("n1", "scontrol", "requeue", job)
    wait_for(tmp_path / "paused-8", cluster, job)
    urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
    cluster.run("n1", "sbatch", *urgent, "--wrap", "true", cwd=tmp_path)
    wait_for(tmp_path / "paused-12", cluster, job)
    cluster.run("n1", "scancel", job)
    assert cluster.wait(job, ENDED.__contains__, SECS) == "CANCELLED"
    text = (tmp_path / "job.log").read_text()
    # Each time it had saved at the step where it was.
    for step in (4, 8):
        assert f"Continuing from the checkpoint of step {step}." in text, text
    check_same_end(cluster, submit(cluster, tmp_path), tmp_path, straight)
    assert "Continuing from the checkpoint of step 12." in (tmp_path / "job.log").read_text()


def reach_time_limit(cluster, job):
    """Bring the time limit of a job near, until it has been started again."""
    num_restarts = cluster.field(job, "Restarts")
    hours, minutes, _ = cluster.field(job, "RunTime").split(":")
    # In one to two minutes. Slurm looks every 30 s whether it must send the signal.
    cluster.update(job, f"timelimit={60 * int(hours) + int(minutes) + 2}")
    until(lambda: cluster.field(job, "Restarts") != num_restarts, "the job is not requeued")
    cluster.update(job, "timelimit=60")


def test_job_over_several_time_limits_ends_the_same(cluster, straight, tmp_path):
    (tmp_path / "paused-12").touch()
    job = submit(cluster, tmp_path, "--time=60", "--signal=TERM@60")
    for step in (4, 8):
        wait_for(tmp_path / f"paused-{step}", cluster, job)
        reach_time_limit(cluster, job)
    check_same_end(cluster, job, tmp_path, straight)
    text = (tmp_path / "job.log").read_text()
    assert "TIME LIMIT" not in text
    for step in (4, 8):
        assert f"Continuing from the checkpoint of step {step}." in text, text


def test_submitit_sweep_whose_job_times_out_is_watched_to_its_end(cluster, tmp_path):
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="steadfast[submitit] is not installed"
    )
    sweep = ["-m", "hydra/launcher=submitit_slurm", "seed=1", pause(tmp_path, [4])]
    program = [sys.executable, str(ROOT / "train.py")]
    process = cluster.begin("n1", *program, *sweep, *OPTIONS, cwd=tmp_path)
    try:
        until(lambda: (tmp_path / "paused-4").exists() or process.poll() is not None, "no pause")
        assert process.poll() is None, process.communicate()
        job = cluster.run("n1", "squeue", "-h", "-t", "running", "-o", "%A").strip()
        # What submitit asks Slurm for before the time is over; every process of the step gets it.
        cluster.run("n1", "scancel", "--signal=USR2", job)
        until(lambda: cluster.field(job, "Restarts") == "1", "not requeued")
        cluster.wait(job, ENDED.__contains__, SECS)
        out, err = process.communicate(timeout=SECS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out + err
    assert "1 point: 1 done" in out
    (run_dir,) = (path for path in (tmp_path / "runs").iterdir() if path.name != "sweeps")
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["step"], result["attempts"]) == (24, 2)


def until(condition, problem):
    """Wait for a condition."""
    end = time.monotonic() + SECS
    while not condition():
        assert time.monotonic() < end, problem
        time.sleep(0.5)
