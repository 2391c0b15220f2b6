"""The losses of a classification against NumPy: smoothed, weighted, focal, of shares."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.choices import NEEDED
from tests.support.training import engine
from trainer.datasets.digits import digits
from trainer.errors import ConfigError
from trainer.tasks.classification import Classification, _cross_entropy

LOGITS = tf.constant([[2.0, 1.0, -1.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.5]])


def task(counts: list[int] | None = None, **options: Any) -> Classification:
    """Return a task whose model returns its features."""
    built = Classification(**options)
    built.build(
        SimpleNamespace(
            num_classes=3,
            num_outputs=3,
            class_counts=counts,
            model=lambda: lambda x, training: x,
            optimizer=lambda: None,
        )
    )
    return built


def losses(of: Classification, label: Any, *, training: bool = True) -> np.ndarray:
    values, _ = of._loss({"features": LOGITS, "label": tf.constant(label)}, training=training)
    result: np.ndarray = values.numpy()
    return result


def test_weights_multiply_the_loss_in_training_alone() -> None:
    weighted = task(class_weights=[1.0, 0.5, 4.0])
    plain = losses(task(), [0, 2, 1])
    np.testing.assert_allclose(losses(weighted, [0, 2, 1]), plain * [1.0, 4.0, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(losses(weighted, [0, 2, 1], training=False), plain)


def test_shares_of_classes_have_their_mean_weight() -> None:
    shares = np.array([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], np.float32)
    found = losses(task(class_weights=[1.0, 2.0, 4.0]), shares)
    np.testing.assert_allclose(found, losses(task(), shares) * [1.75, 3.0, 1.0], rtol=1e-6)


def test_balanced_weights_make_all_classes_count_alike() -> None:
    balanced = task([10, 20, 70], class_weights="balanced")
    weights = 100 / (3 * np.array([10, 20, 70]))
    found = losses(balanced, [0, 1, 2])
    np.testing.assert_allclose(found, losses(task(), [0, 1, 2]) * weights, rtol=1e-6)


def test_balanced_weights_need_an_example_of_each_class() -> None:
    with pytest.raises(ConfigError, match=r"class_weights \(balanced\): class 1 has no example"):
        task([10, 0, 70], class_weights="balanced")


def test_balanced_weights_come_from_the_labels_of_the_training_split(tmp_path: Path) -> None:
    run = engine(tmp_path, "task.class_weights=balanced")
    counts = np.bincount(digits().train.labels)
    np.testing.assert_allclose(run.state.task._weights, counts.sum() / (10 * counts), rtol=1e-12)


STREAM = (
    "task.class_weights=balanced", "dataset=stream", *NEEDED["dataset=stream"],
    "train.steps_per_epoch=4",
)  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["task.class_weights=[1,2]"], r"\(\[1, 2\]\) must have .* the 10 classes; it has 2$"),
        (STREAM, r"\(balanced\): the dataset does not know how many .*; give a list, one number"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, overrides: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^task\.class_weights {problem}"):
        engine(tmp_path, *overrides)


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


def test_one_hot_shares_are_the_label_itself() -> None:
    hard, numbers = _cross_entropy(tf.constant([2, 1]), LOGITS[:2])
    soft, largest = _cross_entropy(tf.one_hot([2, 1], 3), LOGITS[:2])
    np.testing.assert_allclose(soft, hard, rtol=1e-6)
    assert numbers.numpy().tolist() == largest.numpy().tolist() == [2, 1]


def test_loss_is_the_mean_over_the_shares_and_the_class_that_of_the_largest() -> None:
    shares = tf.constant([[0.25, 0.75, 0.0], [0.6, 0.0, 0.4]])
    losses, largest = _cross_entropy(shares, LOGITS[:2])
    expected = -np.sum(shares * tf.nn.log_softmax(LOGITS[:2]), axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert largest.numpy().tolist() == [1, 0]


def test_further_outputs_of_a_model_have_no_share() -> None:
    losses, largest = _cross_entropy(tf.constant([[0.5, 0.5], [0.0, 1.0]]), LOGITS[:2])
    expected, _ = _cross_entropy(tf.constant([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]), LOGITS[:2])
    np.testing.assert_array_equal(losses, expected)
    assert largest.numpy().tolist() == [0, 1]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification_loss_equals_numpy(smoothing: float) -> None:
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    labels = np.array([0, 1, 2, 2, 1, 0])
    values, metrics = task(label_smoothing=smoothing)._train_loss(
        {"features": tf.constant(logits), "label": tf.constant(labels)}
    )
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = np.eye(3)[labels] * (1 - smoothing) + smoothing / 3
    # float32 rounds to 6e-8, and a loss is made of some ten operations on numbers up to 3.
    np.testing.assert_allclose(values, -(target * log_p).sum(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(
        metrics["accuracy"], (logits.argmax(axis=1) == labels).astype(np.float32)
    )


def test_predictions_leave_out_outputs_that_are_no_class() -> None:
    built = Classification()
    model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(7)])
    built.build(
        SimpleNamespace(num_classes=3, num_outputs=7, model=lambda: model, optimizer=lambda: None)
    )
    features = np.random.default_rng(0).normal(size=[2, 4]).astype(np.float32)
    probabilities = built.predict_step({"features": features})["probabilities"]
    np.testing.assert_allclose(probabilities, tf.nn.softmax(model(features))[:, :3], rtol=1e-6)
