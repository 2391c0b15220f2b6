"""Models that adapt preprocessing layers: the same on every layout and after a stop; exported."""

import numpy as np
import pytest
import tensorflow as tf

from tests.programs.adapted import Rows
from tests.support.outputs import export_run, served
from tests.support.training import finish, recipe
from trainer.errors import ConfigError
from trainer.runs.directory import adapted_file

TWO = ("strategy=mirrored", "strategy.virtual_devices=2")
OTHER_DATA = "dataset._target_=tests.programs.adapted.others"


def options(name):
    return (
        "model=softmax", "dataset=digits", f"model._target_=tests.programs.adapted.{name}",
        "dataset._target_=tests.programs.adapted.people", "train.steps=6", "batch.global_size=16",
        "batch.shards=4", "writers=[jsonl]",
    )  # fmt: skip


def columns():
    return {name: tf.constant(values) for name, values in Rows(50).columns.items()}


def exported(directory, *overrides):
    """Export a run; return the probabilities that the exported model gives test examples."""
    return served(export_run(directory, *overrides))(**columns())["probabilities"].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["net", pytest.param("legacy_net", marks=pytest.mark.long)])
def test_adapted_model_is_exported_with_what_it_has_learned(tmp_path, name):
    run = recipe(tmp_path, *options(name), *TWO)
    finish(run)
    model = run.state.task.models["model"]
    probabilities = tf.nn.softmax(model(columns(), training=False)).numpy()
    exported_probabilities = exported(tmp_path, *options(name), OTHER_DATA)
    np.testing.assert_allclose(exported_probabilities, probabilities, rtol=1e-5)
    adapted_file(tmp_path).unlink()
    with pytest.raises(ConfigError, match=r"adapted.json lacks what Normalization"):
        exported(tmp_path, *options(name))


@pytest.mark.slow
def test_feature_space_trains(tmp_path):
    finish(recipe(tmp_path, *options("feature_space"), *TWO))
