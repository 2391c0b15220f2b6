"""Weights of classes in the loss of a classification."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import engine
from trainer.datasets.digits import digits
from trainer.errors import ConfigError
from trainer.tasks.classification import Classification

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


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["task.class_weights=[1,2]"],
            "task.class_weights ([1, 2]) must have one number for each of the 10 classes; it has 2",
        ),
        (
            [
                "task.class_weights=balanced",
                "dataset=stream",
                "dataset.train._target_=tests.support.toy_streams.train",
                "dataset.test._target_=tests.support.toy_streams.test",
                "dataset.num_classes=10",
                "train.steps_per_epoch=4",
            ],
            "task.class_weights (balanced): the dataset does not know how many examples of each "
            "class it has without reading all of them; give a list, one number for each class",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, overrides: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        engine(tmp_path, *overrides)
    assert raised.value.problems == (problem,)
