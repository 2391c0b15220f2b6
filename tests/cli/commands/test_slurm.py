"""The command `slurm`: its job script, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from trainer.cli.compose import compose
from trainer.runs.identity import run_path

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


def run_script(text, folder, answer, **environment):
    """Run a job script, whose `srun` prints words of its arguments; return what is printed."""
    srun = folder / "srun"
    srun.write_text(f'#!/bin/sh\necho "{answer}"\n')
    srun.chmod(0o755)
    return subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{folder}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


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


def test_options_of_sbatch_are_passed_on_after_ours():
    words = ["-N", "2", "--time", "2-12", "-p", "gpu", "--exclusive", "--signal=B:USR1@30"]
    given = options(*words, *MULTI, "--output=a b.log")
    assert given[2] == "--nodes=2"
    ours = ["--signal=B:USR1@30", "--time=2-12", "-p gpu", "--exclusive", "--output='a b.log'"]
    assert given[-5:] == ours
    joined = options("-N2", "-t2:00:00", "-Jname", "-pgpu", *MULTI)
    assert {"--nodes=2", "--time=2:00:00", "-Jname", "-pgpu"} <= set(joined)
    assert not [line for line in joined if line.startswith(("-N", "-t"))]


def test_submit_gives_the_script_to_sbatch(tmp_path, monkeypatch):
    program = Path("sbatch")
    program.write_text("#!/bin/sh\ncat > submitted\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert run_here("slurm", *MULTI, "--submit").code == 3
    assert Path("submitted").read_text() == script(*MULTI)


SWEEP = ("-m", "model=softmax", "seed=1,2,3", "train.steps=4", "sweep.name=mine")


def finish(seed):
    """Write the result of a point."""
    folder = run_path(compose(["model=softmax", f"seed={seed}", "train.steps=4"]))
    folder.mkdir(parents=True)
    result = {"step": 4, "metrics": {"loss": 0.5}, "train": {"steps": 4, "epochs": None}}
    (folder / "result.json").write_text(json.dumps(result))


def test_sweep_is_an_array_of_the_points_that_are_not_done(tmp_path):
    # Keys that the engine adds to a choice, of which Hydra knows nothing.
    added = ["dataset.validation=0.2", "optimizer.lazy=false", "schedule.reference_batch=16"]
    text = script(*SWEEP, "sweep.jobs=2", *added)
    assert "#SBATCH --job-name=mine\n" in text
    assert "#SBATCH --array=1,2,3%2\n" in text
    assert 'scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' in text
    finish(2)
    text = script(*SWEEP)
    assert "#SBATCH --array=1,3\n" in text
    printed = run_script(text, tmp_path, "$@", SLURM_ARRAY_TASK_ID="3")
    # The command of a point is that of a run.
    assert printed.endswith("train.py model=softmax seed=3 train.steps=4 train.epochs=null\n")
    # Outside an array no point is meant, and the default experiment is not either.
    outside = subprocess.run(["bash", "-c", text], capture_output=True, timeout=60, check=False)
    assert outside.returncode == 2


def test_finished_sweep_submits_nothing_and_shows_its_table():
    for seed in (1, 2, 3):
        finish(seed)
    outcome = run_here("slurm", *SWEEP, "--submit")
    assert (outcome.code, outcome.err) == (0, "")
    assert "3 points: 3 done; the best accuracy first:" in outcome.out
    assert Path("runs/sweeps/mine/summary.json").exists()
