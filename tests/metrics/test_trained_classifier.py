"""A classifier that a run has trained, of either Keras, as a judge."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.metrics.gan_quality import TrainedClassifier
from trainer.worker.building import build
from trainer.worker.building.build_dataset import build_dataset

TARGETS = {
    "tf_keras": "trainer.models.softmax.softmax",
    "keras 3": "tests.support.keras3_models.conv_net",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_judge_has_the_averaged_weights_and_the_last_layers_inputs(tmp_path, kind):
    overrides = ["model=softmax", "~model.l2", f"model._target_={TARGETS[kind]}"]
    options = ["train.steps=2", "batch.global_size=16", "train.ema_decay=0.5", "writers=[jsonl]"]
    engine = build.engine(compose([*overrides, *options]), tmp_path, Channel(lambda message: None))
    engine.train(lambda: False)
    node = {"model": {"_target_": TARGETS[kind]}}
    (tmp_path / "config.yaml").write_text(json.dumps(node))
    dataset = build_dataset(compose(overrides))
    model = engine.state.task.models["model"]
    features = np.random.default_rng(0).normal(size=(5, *dataset.input_shape)).astype(np.float32)
    plain = tf.nn.softmax(model(features, training=False)).numpy()
    for variable, average in zip(
        model.trainable_variables, engine.state.averages["model"], strict=True
    ):
        variable.assign(average)
    averaged = tf.nn.softmax(model(features, training=False)).numpy()
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        judge = TrainedClassifier(tmp_path, dataset)
        assert tf.keras.mixed_precision.global_policy().name == "mixed_bfloat16"
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
        keras.config.set_dtype_policy("float32")
    seen, probabilities = judge.judge(features)
    assert seen.shape[0] == 5
    assert seen.dtype == np.float32
    np.testing.assert_allclose(probabilities, averaged, rtol=0, atol=1e-6)
    assert np.abs(averaged - plain).max() > 1e-4
