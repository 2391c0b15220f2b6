"""The recipes of segmentation and contrastive learning, shortened: they learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.engine.initial_weights import restore_weights
from trainer.worker import build, export


def evaluations(directory: Path, *overrides: str) -> list[dict[str, float]]:
    """Train; return the metrics of the test split, in order."""
    directory.mkdir()
    experiment = compose([*overrides, "writers=[jsonl]"])
    engine = build.engine(experiment, directory, Channel(lambda message: None))
    if experiment.init_from is not None:
        models = engine.state.task.models
        restore_weights(Path(experiment.init_from), models, experiment.init_allow)
    engine.train(lambda: False)
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == "test"]


@pytest.mark.slow
def test_unet_learns_to_tell_shapes_from_the_ground(tmp_path: Path) -> None:
    short = ["train.steps=60", "evaluate.every_steps=60", "dataset.num_test=100"]
    (last,) = evaluations(tmp_path / "run", "experiment=segment_shapes", *short)
    assert last["iou/0"] > 0.8
    assert last["accuracy"] > 0.8
    assert 0.3 < last["mean_iou"] < 1.0


@pytest.mark.slow
def test_features_without_labels_find_digits_and_carry_a_new_head(tmp_path: Path) -> None:
    short = ["train.steps=160", "evaluate.every_steps=80"]
    first, last = evaluations(tmp_path / "run", "experiment=contrastive_digits", *short)
    assert last["loss"] < first["loss"]
    assert last["accuracy"] > first["accuracy"]
    # The whole recipe reaches 0.86.
    assert last["knn_accuracy"] > 0.65
    export.run(
        compose(["experiment=contrastive_digits", *short, "mode=export"]),
        tmp_path / "run",
        Channel(lambda message: None),
    )
    source = tmp_path / "run" / "export" / "model-160" / "model.h5"
    transfer = ["experiment=transfer_digits", f"init_from={source}", "train.epochs=8"]
    (last,) = evaluations(tmp_path / "head", *transfer, "evaluate.every_epochs=8")
    # The whole recipe reaches 0.87.
    assert last["accuracy"] > 0.75
