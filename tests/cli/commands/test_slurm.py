"""The command `slurm`: its job script, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import run_here

MULTI = ("strategy=multi_worker", "model=softmax")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def script(*words):
    outcome = run_here("slurm", *words)
    assert (outcome.code, outcome.err) == (0, "")
    done = subprocess.run(["bash", "-n"], input=outcome.out, text=True, timeout=60, check=False)
    assert done.returncode == 0
    return outcome.out


def options(*words):
    lines = script(*words).splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_script_has_a_node_for_each_process_and_runs_the_command(tmp_path):
    name, *rest = options(*MULTI, "strategy.workers=3", "runs_dir='my runs'")
    assert name.startswith("--job-name=softmax-digits-")
    assert rest == [
        f"--chdir={tmp_path}",
        "--nodes=3",
        "--ntasks-per-node=1",
        "--requeue",
        "--open-mode=append",
        "--signal=TERM@120",
    ]
    program = f"{sys.executable} {tmp_path / 'train.py'}"
    lines = script(*MULTI, "runs_dir='my runs'").splitlines()
    at = lines.index("srun --kill-on-bad-exit=1 \\")
    assert lines[at + 1] == f"  {program} {' '.join(MULTI)} 'runs_dir='\"'\"'my runs'\"'\"''"


def test_options_of_sbatch_are_passed_on_and_replace_ours():
    words = ["-N", "2", "--time", "2-12", "-p", "gpu", "--exclusive", "--signal=B:USR1@30"]
    given = options(*words, *MULTI, "--output=a b.log")
    assert [line for line in given if "job-name" not in line and "chdir" not in line] == [
        "--nodes=2",
        "--ntasks-per-node=1",
        "--requeue",
        "--open-mode=append",
        "--signal=B:USR1@30",
        "--time=2-12",
        "-p gpu",
        "--exclusive",
        "--output='a b.log'",
    ]


def test_short_options_may_have_their_value_joined():
    given = options("-N2", "-t2:00:00", "-Jname", "-pgpu", *MULTI)
    assert {"--nodes=2", "--time=2:00:00", "--job-name=name", "-pgpu"} <= set(given)
    assert not [line for line in given if line.startswith(("-N", "-t", "-J"))]


def test_range_of_nodes_takes_every_size_that_divides_the_batch():
    text = script(*MULTI, "--nodes=1-2", "batch.shards=2")
    assert "#SBATCH --nodes=1-2\n" in text
    # With it Slurm 22.05 gives one node, though two are free.
    assert "--ntasks-per-node" not in text
    # On one node it must not start a cluster of two.
    assert text.splitlines()[-6].endswith(" strategy.workers=1")
    assert "srun --kill-on-bad-exit=1 \\\n" in text
    assert " strategy.workers=2\n" in script(*MULTI, "--nodes=1-2", "strategy.workers=2")
    assert "strategy.workers" not in script(*MULTI, "--nodes=2-4")


@pytest.mark.parametrize(("nodes", "tasks"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 4)])
def test_range_of_nodes_leaves_out_sizes_that_do_not_divide_the_batch(nodes, tasks, tmp_path):
    text = script(*MULTI, "--nodes=1-5", "batch.shards=4", "batch.global_size=16")
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "$2 $3"\n')
    srun.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NUM_NODES": str(nodes)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"--nodes={tasks} --ntasks={tasks}\n"


def test_config_dir_is_an_absolute_path_of_the_command(tmp_path):
    (tmp_path / "theirs").mkdir()
    assert f" --config-dir {tmp_path / 'theirs'} model=softmax" in script(
        "--config-dir", "theirs", "model=softmax"
    )


def test_submit_gives_the_script_to_sbatch(tmp_path, monkeypatch):
    program = Path("sbatch")
    program.write_text("#!/bin/sh\ncat > submitted\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert run_here("slurm", *MULTI, "--submit").code == 3
    assert Path("submitted").read_text() == script(*MULTI)


def test_submit_without_slurm_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = run_here("slurm", *MULTI, "--submit")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --submit: there is no sbatch here")
