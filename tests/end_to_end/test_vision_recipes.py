"""The recipes of segmentation and contrastive learning: they reach their figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.engine.initial_weights.initial_weights import restore_weights
from trainer.worker.building import build
from trainer.worker.export import export


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


@pytest.mark.long
def test_unet_reaches_the_overlap_of_its_recipe(tmp_path: Path) -> None:
    *_, last = evaluations(tmp_path / "run", "experiment=segment_shapes")
    assert last["mean_iou"] == pytest.approx(0.92, abs=0.03)
    assert last["iou/0"] > 0.95
    assert last["accuracy"] > 0.95


@pytest.mark.long
def test_features_without_labels_find_digits_and_carry_a_new_head(tmp_path: Path) -> None:
    first, *_, last = evaluations(tmp_path / "run", "experiment=contrastive_digits")
    assert last["loss"] < first["loss"]
    assert last["accuracy"] > first["accuracy"]
    assert last["knn_accuracy"] == pytest.approx(0.86, abs=0.03)
    export.run(
        compose(["experiment=contrastive_digits", "mode=export"]),
        tmp_path / "run",
        Channel(lambda message: None),
    )
    (source,) = (tmp_path / "run" / "export").glob("model-*/model.h5")
    *_, last = evaluations(tmp_path / "head", "experiment=transfer_digits", f"init_from={source}")
    assert last["accuracy"] == pytest.approx(0.88, abs=0.03)
