"""The metrics of a run by epoch, and as curves."""

import json
import math

import pytest

from trainer.runs.recorded_metrics import epoch_metrics, read_curves, read_evaluations


def test_metrics_of_an_epoch_are_means_over_its_steps(tmp_path):
    lines = [
        {"step": 2, "split": "train", "epoch": 0, "loss": 9.0, "memory_mib": 1.0},
        # Again, after a restart.
        {"step": 2, "split": "train", "epoch": 0, "loss": 4.0, "g_loss": 1.0},
        {"step": 3, "split": "train", "epoch": 1, "loss": 1.0, "g_loss": 4.0},
        {"step": 3, "split": "test", "epoch": 1, "loss": 2.5, "accuracy": 0.5},
        {"step": 5, "split": "test", "epoch": 1, "loss": 7.5, "accuracy": 0.1},
        {"step": 6, "split": "train", "epoch": 2, "loss": 0.5, "learning_rate/a": 0.1},
        {"step": 8, "split": "train", "epoch": 2, "loss": 0.1},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    metrics = epoch_metrics(tmp_path)
    assert metrics["loss"] == pytest.approx([(2 * 4 + 1) / 3, 0.5])
    assert metrics["val_loss"] == [2.5]
    assert metrics["val_accuracy"] == [0.5]
    assert metrics["g_loss"] == [2.0]
    assert len(metrics) == 4
    assert epoch_metrics(tmp_path / "none") == {}


def test_curves_are_read_by_split_and_name(tmp_path):
    train = [{"step": step, "split": "train", "epoch": 0, "loss": 1 / step} for step in (1, 2)]
    test = {"step": 2, "split": "test", "epoch": 1, "loss": 0.4, "accuracy": 0.5}
    early = {"step": 1, "split": "test", "accuracy": float("nan")}
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in (*train, test)))
    (tmp_path / "evaluations.jsonl").write_text(f"{json.dumps(early)}\n")
    curves = read_curves(tmp_path)
    assert curves["train", "loss"] == [(1, 1.0), (2, 0.5)]
    (_, value), last = curves["test", "accuracy"]
    assert math.isnan(value)
    assert last == (2, 0.5)
    assert set(curves) == {("train", "loss"), ("test", "loss"), ("test", "accuracy")}
    assert read_curves(tmp_path / "none") == {}


def test_evaluations_of_a_long_file_are_all_read(tmp_path):
    lines = [
        {"step": step, "split": split, "loss": 1 / step, "padding": 1e-300}
        for step in range(1, 4001)
        for split in ("train", "test")
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 4001, "split": "test", "lo')
    assert len(text) > 1 << 19  # it is read in several blocks
    evaluations = read_evaluations(tmp_path)
    assert [step for step, _ in evaluations] == list(range(1, 4001))
    assert evaluations[2][1]["loss"] == 1 / 3
