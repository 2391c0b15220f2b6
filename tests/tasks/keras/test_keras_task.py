"""The task of Keras programs: what it reports is what Keras' own evaluation says."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.programs import two_heads
from tests.support.training import recipe
from trainer.engine.graph.step.metric_sums import num_sums, unpack
from trainer.errors import ConfigError

OPTIONS = (
    "task=keras",
    "model._target_=tests.programs.two_heads.net",
    "dataset=arrays",
    "dataset.data._target_=tests.programs.two_heads.columns",
    "batch.global_size=32",
    "train.steps=6",
    "writers=[jsonl]",
)


@pytest.mark.slow
@pytest.mark.parametrize("library", [tf.keras, keras], ids=["tf_keras", "keras"])
def test_several_inputs_and_outputs_are_evaluated_as_keras_does(tmp_path, library):
    name = "keras" if library is keras else "tf_keras"
    engine = recipe(tmp_path, *OPTIONS, f"+model.library={name}", "batch.shards=2")
    assert engine.train(lambda: False)
    metrics = engine.evaluator.evaluate(lambda: False).metrics
    model = two_heads.net(library=name)
    model.set_weights(engine.state.task.models["model"].get_weights())
    x, y, weight = two_heads.columns()[1]
    inputs = {"size": x["size"].astype("f"), "kind": x["kind"].astype("int32")}
    weights = {name: weight for name in y}
    expected = model.evaluate(
        inputs, y, sample_weight=weights, batch_size=40, verbose=0, return_dict=True
    )
    assert set(expected) == set(metrics)
    for key, value in expected.items():
        np.testing.assert_allclose(metrics[key], value, rtol=2e-5, err_msg=key)


def test_model_without_a_loss_is_refused(tmp_path):
    options = ["task=keras", "model=softmax", "dataset=digits", "optimizer=adam"]
    with pytest.raises(
        ConfigError, match=r"task.loss \(null\) must be set .* add task.loss=<name>"
    ):
        recipe(tmp_path, *options)


def test_loss_that_is_not_finite_is_reported_as_such(tmp_path):
    options = ["task=keras", "model._target_=tests.programs.keras_steps.compiled", "dataset=digits"]
    task = recipe(tmp_path, *options).state.task
    sums = np.full([num_sums(task)], math.nan)
    assert unpack(task, sums).keys() == {"loss", "accuracy"}


def test_option_that_own_steps_do_not_read_is_refused(tmp_path):
    options = [
        "task=keras", "model._target_=tests.programs.keras_steps.vae", "dataset=digits",
        "task.loss=mse",
    ]  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"task.loss \(mse\) is not used: .* train_step, test_step"
    ):
        recipe(tmp_path, *options)
