"""The quality of generated examples: scores against closed forms, and the classifier's part."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.metrics.gan_quality import TrainedClassifier, frechet_distance, inception_score
from trainer.worker.training import TrainingRun

TARGETS = {
    "tf_keras": "trainer.models.softmax.softmax",
    "keras 3": "tests.support.keras3_models.conv_net",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_judge_has_the_averaged_weights_and_the_last_layers_inputs(tmp_path, kind):
    overrides = ["model=softmax", "~model.l2", f"model._target_={TARGETS[kind]}"]
    options = ["train.steps=2", "batch.global_size=16", "train.ema_decay=0.5", "writers=[jsonl]"]
    run = TrainingRun(compose([*overrides, *options]), tmp_path, Channel(lambda message: None))
    engine = run.engine
    engine.train(lambda: False)
    node = {"model": {"_target_": TARGETS[kind]}}
    (tmp_path / "config.yaml").write_text(json.dumps(node))
    dataset = run.dataset
    model = engine.state.task.models["model"]
    features = np.random.default_rng(0).normal(size=(5, *dataset.input_shape)).astype(np.float32)
    plain = tf.nn.softmax(model(features, training=False)).numpy()
    averages = engine.state.averages["model"]
    for variable, average in zip(model.trainable_variables, averages, strict=True):
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


def with_moments(mean, covariance, count=400):
    """Return examples whose sample mean and covariance are exactly these, up to rounding."""
    raw = np.random.default_rng(0).normal(size=(count, len(mean)))
    raw -= raw.mean(axis=0)
    white = raw @ np.linalg.inv(np.linalg.cholesky(np.atleast_2d(np.cov(raw, rowvar=False)))).T
    return white @ np.linalg.cholesky(np.asarray(covariance, float)).T + mean


def test_distance_does_not_depend_on_the_basis():
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    first = with_moments([0.0, 1.0, 2.0], [[2, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 3]])
    second = with_moments([1.0, 1.0, 0.0], [[1, 0.3, 0.1], [0.3, 2, 0], [0.1, 0, 1]])
    # The product of these two is not symmetric: against the eigenvalues of the plain product.
    product = np.cov(first, rowvar=False) @ np.cov(second, rowvar=False)
    root_trace = np.sqrt(np.linalg.eigvals(product).astype(complex)).sum().real
    traces = 2 + 1 + 3 + 1 + 2 + 1
    expected = 1 + 0 + 4 + traces - 2 * root_trace
    np.testing.assert_allclose(frechet_distance(first, second), expected, rtol=1e-9)
    turned = frechet_distance(first @ rotation, second @ rotation)
    np.testing.assert_allclose(turned, expected, rtol=1e-9)


def test_distance_of_the_same_examples_is_zero_also_with_a_constant_feature():
    examples = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    examples[:, 2] = 1.0
    assert frechet_distance(examples, examples) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        (np.eye(4), 4.0),
        (np.full((5, 4), 0.25), 1.0),
        (np.repeat(np.eye(4)[:1], 3, axis=0), 1.0),
        # Two kinds of examples: exp(H(1/2) - H(0.9)).
        ([[0.9, 0.1], [0.1, 0.9]], np.exp(np.log(2) + 0.9 * np.log(0.9) + 0.1 * np.log(0.1))),
    ],
)
def test_inception_score_follows_its_definition(probabilities, expected):
    score = inception_score(np.asarray(probabilities, np.float32))
    np.testing.assert_allclose(score, expected, rtol=1e-6)
