"""docs/examples/contrastive: a task with a custom evaluation, as a user's project."""

import shutil

import pytest

from tests.support.processes import ROOT, log, only_run, succeed


@pytest.mark.slow
def test_features_are_learned_and_found_by_neighbors(tmp_path):
    shutil.copytree(ROOT / "docs" / "examples" / "contrastive", tmp_path, dirs_exist_ok=True)
    succeed(
        tmp_path, "experiment=contrastive_digits", "train.steps=20", "evaluate.every_steps=10",
        "checkpoint.every_steps=20", "batch.global_size=64",
        "strategy=mirrored", "strategy.virtual_devices=2",
    )  # fmt: skip
    tests = [line for line in log(only_run(tmp_path)) if line["split"] == "test"]
    assert tests[-1]["loss"] < tests[0]["loss"]
    assert tests[-1]["knn_accuracy"] > 0.3  # of ten classes
