"""Summaries of runs for lists, and what distinguishes runs."""

import json
import random
import time

import pytest

from trainer.cli.compose import compose
from trainer.runs import provenance
from trainer.runs.directory import open_run
from trainer.runs.ledger import Ledger
from trainer.runs.run_summary import label, summarize
from trainer.runs.status import State


@pytest.fixture
def run(tmp_path):
    """A run of 100 steps that this process trains."""
    run = open_run(
        compose([f"runs_dir={tmp_path}", "train.epochs=null", "train.steps=100"]), [], None
    )
    metrics = {"direction": {"loss": "min", "accuracy": "max"}, "primary": "accuracy"}
    provenance.update(run.path, num_replicas=1, total_steps=100, metrics=metrics)
    yield run
    run.release()


def write_lines(path, *lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def mark(phase, step, secs_ago, **values):
    return {"phase": phase, "step": step, "input_secs": 0, "time": time.time() - secs_ago, **values}


def test_run_that_trains_tells_its_progress_and_the_time_left(run):
    write_lines(
        run.path / "ledger.jsonl",
        mark("begin", None, 1000),
        mark("exit", None, 900),
        mark("begin", None, 130),
        mark("start", None, 125, workers=2),
        mark("compile", 20, 120),
        mark("step", 20, 100),
        mark("step", 60, 20),
    )
    summary = summarize(run.path)
    assert (summary.state, summary.step, summary.total) == (State.RUNNING, 60, 100)
    assert summary.secs == pytest.approx(100 + 130, abs=5)
    assert summary.eta_secs == pytest.approx(40 * 2 - 20, abs=5)  # 2 s a step
    run.release()
    assert summarize(run.path).eta_secs is None


def test_best_evaluation_counts_by_the_primary_metric(run):
    write_lines(
        run.path / "metrics.jsonl",
        {"step": 10, "split": "test", "loss": 0.5, "accuracy": 0.5},
        {"step": 20, "split": "test", "loss": 0.7, "accuracy": 0.75},
        {"step": 25, "split": "train", "loss": 0.1, "accuracy": 1.0},
        {"step": 30, "split": "test", "loss": 0.6, "accuracy": 0.75},
        {"step": 40, "split": "test", "loss": 0.6, "accuracy": float("nan")},
    )
    summary = summarize(run.path)
    assert summary.best == (20, 0.75)
    assert summary.metrics["loss"] == 0.6


def test_time_and_workers_are_those_of_the_whole_ledger(run):
    for seed in range(50):
        draw = random.Random(seed)
        now, step, lines = 0.0, 0, []
        for _ in range(draw.randint(1, 40)):
            phase = draw.choice(["begin", "start", "compile", *["step"] * 5, "restart", "exit"])
            now += draw.random()
            step = max(0, step + draw.randint(-2, 5))
            knows_step = phase in ("compile", "step")
            workers = draw.randint(1, 3) if phase == "start" else None
            values = {"input_secs": draw.random(), "time": now, "workers": workers}
            lines.append({"phase": phase, "step": step if knows_step else None, **values})
        write_lines(run.path / "ledger.jsonl", *lines)
        run.release()
        summary, whole = summarize(run.path), Ledger(run.path, writes=False).summary()
        assert summary.secs == pytest.approx(whole.wall_secs, abs=1e-6), seed
        assert summary.sizes == whole.sizes, seed


def test_label_has_the_end_of_a_long_path():
    origin = "/home/user/runs/sweeps/rate/origins/4/ckpt-20"
    assert label({"lr": "1", "init_from": origin}) == "lr=1 init_from=.../4/ckpt-20"
