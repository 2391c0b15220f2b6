"""The focal loss of a classification."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.tasks.test_class_weights import LOGITS, losses, task


def probabilities() -> np.ndarray:
    exponentials = np.exp(LOGITS.numpy().astype(np.float64))
    result: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_is_that_of_the_paper_in_training_alone(gamma: float) -> None:
    labels = [0, 2, 1]
    focal = task(focal_gamma=gamma)
    p = probabilities()[np.arange(3), labels]
    np.testing.assert_allclose(losses(focal, labels), -((1 - p) ** gamma) * np.log(p), rtol=1e-5)
    np.testing.assert_allclose(losses(focal, labels, training=False), -np.log(p), rtol=1e-5)


def test_shares_of_classes_have_their_mean_probability() -> None:
    shares = np.array([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], np.float32)
    p = probabilities()
    expected = (1 - (shares * p).sum(axis=-1)) ** 2 * -(shares * np.log(p)).sum(axis=-1)
    np.testing.assert_allclose(losses(task(focal_gamma=2.0), shares), expected, rtol=1e-5)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_gradient_of_a_certain_example_is_finite(gamma: float) -> None:
    logits = tf.Variable([[200.0, 0.0, 0.0]])
    focal = task(focal_gamma=gamma)
    with tf.GradientTape() as tape:
        loss, _ = focal._loss({"features": logits, "label": tf.constant([0])}, training=True)
    assert np.isfinite(tape.gradient(loss, logits).numpy()).all()
