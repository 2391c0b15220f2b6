"""Precision and recall of each class, against values by hand."""

import math

import numpy as np
import pytest

from trainer.metrics.per_class import PerClass


def probabilities(predicted, num_classes):
    return np.eye(num_classes, dtype=np.float32)[predicted]


def result(labels, predicted, num_classes=3, names=(), chunks=1, **options):
    metric = PerClass(**options)
    metric.class_names = names
    for part, of in zip(
        np.array_split(np.array(labels), chunks),
        np.array_split(np.array(predicted), chunks),
        strict=True,
    ):
        metric.update_state(part, probabilities(of, num_classes))
    return metric.result()


@pytest.mark.parametrize("chunks", [1, 3])
def test_per_class_equals_values_by_hand(chunks):
    values = result([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2], chunks=chunks)
    assert values == pytest.approx({
        "precision": (1 + 1 / 2 + 1 / 2) / 3,
        "precision/0": 1.0, "precision/1": 1 / 2, "precision/2": 1 / 2,
        "recall": (2 / 3 + 1 / 2 + 1) / 3,
        "recall/0": 2 / 3, "recall/1": 1 / 2, "recall/2": 1.0,
    }, abs=1e-15)  # fmt: skip


def test_classes_without_predictions_or_examples_are_zero_and_absent_ones_left_out():
    values = result([0, 0, 1], [0, 2, 0], num_classes=4)
    assert (values["precision/1"], values["recall/1"]) == (0.0, 0.0)  # never predicted
    assert (values["precision/2"], values["recall/2"]) == (0.0, 0.0)  # without examples
    assert values["precision"] == pytest.approx(1 / 2 / 3)  # of the three that occur
    assert values["recall"] == pytest.approx(1 / 2 / 3)


def test_per_class_has_averages_alone_for_many_classes():
    assert result([0, 1], [0, 1], num_classes=21).keys() == {"precision", "recall"}
    assert result([0, 1], [0, 1], num_classes=2, most_classes=1).keys() == {"precision", "recall"}
    assert len(result([0, 1], [0, 1], num_classes=20)) == 42


def test_class_names_fit_a_command_line():
    assert "precision/polar_bear" in result([0], [0], 2, names=["polar bear", "cat"])
    assert "recall/1" in result([0], [0], 2, names=["a b", "a_b"])


def test_per_class_uses_weights_and_reset():
    metric = PerClass()
    assert all(map(math.isnan, metric.result().values()))
    metric.update_state(np.array([1, 1, 0]), probabilities([0, 0, 1], 2))
    metric.reset_state()
    metric.update_state(np.array([0, 0, 1]), probabilities([0, 1, 1], 2), np.array([3.0, 1.0, 1.0]))
    assert metric.result() == {
        "precision": 0.75, "precision/0": 1.0, "precision/1": 0.5,
        "recall": 0.875, "recall/0": 0.75, "recall/1": 1.0,
    }  # fmt: skip


def test_probabilities_that_are_not_finite_predict_no_class():
    metric = PerClass()
    metric.update_state(np.array([0, 0, 1]), np.array([[np.nan] * 2, [1.0, 0.0], [0.0, 1.0]]))
    assert metric.result() == pytest.approx({
        "precision": 1.0, "precision/0": 1.0, "precision/1": 1.0,
        "recall": 0.75, "recall/0": 0.5, "recall/1": 1.0,
    })  # fmt: skip
