"""The confusion matrix: counts by label and prediction."""

import numpy as np

from trainer.metrics.confusion import ConfusionMatrix


def probabilities(predicted, num_classes):
    return np.eye(num_classes, dtype=np.float32)[predicted]


def test_confusion_matrix_has_labels_in_rows_and_predictions_in_columns():
    metric = ConfusionMatrix()
    metric.update_state(np.array([0, 0, 1]), probabilities([0, 2, 1], 3))
    metric.update_state(np.array([2, 2]), probabilities([2, 1], 3))
    np.testing.assert_array_equal(metric.matrix, [[1, 0, 1], [0, 1, 0], [0, 1, 1]])
    assert metric.result() == {}
    assert metric.table()["classes"] == ["0", "1", "2"]
    metric.class_names = ["a", "b", "c"]
    assert metric.table() == {
        "classes": ["a", "b", "c"],
        "matrix": [[1, 0, 1], [0, 1, 0], [0, 1, 1]],
    }


def test_confusion_matrix_uses_weights_and_reset():
    metric = ConfusionMatrix()
    metric.update_state(np.array([1]), probabilities([0], 2))
    metric.reset_state()
    assert metric.matrix.size == 0
    metric.update_state(np.array([1, 0]), probabilities([0, 0], 2), np.array([2.0, 0.5]))
    np.testing.assert_array_equal(metric.matrix, [[0.5, 0], [2, 0]])


def test_probabilities_that_are_not_finite_are_in_no_column():
    metric = ConfusionMatrix()
    metric.update_state(np.array([0, 1]), np.array([[np.nan, np.nan], [0.0, 1.0]]))
    np.testing.assert_array_equal(metric.matrix, [[0, 0], [0, 1]])
