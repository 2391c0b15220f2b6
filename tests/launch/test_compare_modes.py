"""The command that compares modes: what it runs, in which order, and what it refuses.

Real runs are trained on the page docs/how-to/compare-modes.md.
"""

import json
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from trainer.launch import compare_modes
from trainer.runs import identity

WORDS = ["compare-modes", "model=softmax", "train.steps=10"]


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """The experiments that were trained, in order; what the key `code` says is their exit code."""
    monkeypatch.chdir(tmp_path)
    experiments = []

    class Server:
        directory = tmp_path

        def keep(self, secs):
            pass

        def release(self):
            pass

    def train(command, experiment, server):
        experiments.append(experiment)
        directory = Path(experiment.runs_dir) / identity.run_name(experiment)
        directory.mkdir(parents=True)
        lines = [
            {"step": 10, "split": "train", "loss": 1.0, "train_secs": 2.0},
            {"step": 10, "split": "test", "loss": 0.5},
        ]
        (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
        return 143 if experiment.name == "sync-slow" and "stops" in experiment.runs_dir else 0

    monkeypatch.setattr(compare_modes.ForkServer, "acquire", Server)
    monkeypatch.setattr(compare_modes, "run_command", train)
    return experiments


def test_four_runs_differ_in_strategy_and_slow_worker_alone(trained):
    outcome = run_here(*WORDS, "--workers", "3", "seed=7", "--delay=0.2")
    assert outcome.code == 0, outcome.err
    assert [experiment.name for experiment in trained] == [
        "sync", "async", "sync-slow", "async-slow",
    ]  # fmt: skip
    leaves = [identity.leaves(experiment) for experiment in trained]
    differing = {key for key in leaves[0] if len({str(item.get(key)) for item in leaves}) > 1}
    assert {key.partition(".")[0] for key in differing} == {"name", "strategy", "choices", "fault"}
    assert {item["strategy.workers"] for item in leaves} == {3}
    assert {item["seed"] for item in leaves} == {7}
    slow = [experiment.fault.get("slow_worker") for experiment in trained]
    assert slow[:2] == [None, None]
    assert {(fault.process, fault.delay_secs) for fault in slow[2:]} == {("worker-2", 0.2)}


def test_table_page_and_file_are_written(trained):
    outcome = run_here(*WORDS)
    assert "--- async: parameter_server, 2 workers\n" in outcome.out
    assert "With worker-1 slowed down, sync trains at " in outcome.out
    folder = Path(trained[0].runs_dir)
    assert outcome.out.endswith(f"Report: {folder / 'report.html'}\n")
    assert set(json.loads((folder / "comparison.json").read_text())["runs"]) == {
        "sync", "async", "sync-slow", "async-slow",
    }  # fmt: skip
    assert (folder / "report.html").exists()


def test_run_that_was_stopped_ends_the_command(trained):
    outcome = run_here(*WORDS, "runs_dir=stops")
    assert outcome.code == 143
    assert [experiment.name for experiment in trained] == ["sync", "async", "sync-slow"]
    assert not list(Path("stops").rglob("report.html"))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--workers", "1"], "--workers (1) must be >= 2: one has nobody to wait for"),
        (["--delay", "0"], "--delay (0) must be > 0"),
        (["strategy.workers=3"], "leave it out, and give the number of workers as --workers"),
        (["strategy=mirrored"], "leave it out, and give the number of workers as --workers"),
        (["batch.per_replica=8"], "use batch.global_size"),
        (["batch.shards=8"], "batch.shards (8) cannot be used with strategy=parameter_server"),
        (["train.stepz=1"], "train.stepz"),
        (["--sort"], "unknown option --sort"),
    ],
)
def test_incomparable_options_are_refused_before_anything_is_trained(trained, words, problem):
    outcome = run_here(*WORDS, *words)
    assert outcome.code == 2
    assert problem in outcome.err
    assert trained == []
    assert not Path("runs").exists()
