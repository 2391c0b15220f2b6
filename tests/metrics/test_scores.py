"""Metrics of classes, labels and numbers, against values by hand and by definition."""

import numpy as np
import pytest

from trainer.metrics.calibration import CalibrationError
from trainer.metrics.confusion import ConfusionMatrix
from trainer.metrics.multilabel_scores import MultilabelScores
from trainer.metrics.per_class import PerClass
from trainer.metrics.regression_scores import RegressionScores
from trainer.metrics.top_k import TopK

NAN = np.nan


def result(metric, labels, predictions, chunks=1):
    """Return the values of a metric after updates with parts of the examples."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if predictions.dtype.kind == "i":  # predicted classes, each with certainty
        predictions = np.eye(4)[predictions]
    for rows in np.array_split(np.arange(len(labels)), chunks):
        metric.update_state(labels[rows], predictions[rows].astype(np.float32))
    found = metric.result()
    return found


@pytest.mark.parametrize(
    ("metric", "labels", "predictions"),
    [
        (CalibrationError(), [0, 1], [[0.6, 0.4], [0.9, 0.1]]),
        (MultilabelScores(), [[1, 0], [0, 1]], [[0.6, 0.4], [0.9, 0.1]]),
        (PerClass(), [0, 1], [[0.6, 0.4], [0.9, 0.1]]),
        (RegressionScores(), [[1.0], [2.0]], [[3.0], [2.0]]),
        (TopK(k=1), [0, 1], [[0.6, 0.4], [0.9, 0.1]]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_without_examples_and_after_a_reset_there_is_no_value(metric, labels, predictions):
    assert all(np.isnan(list(metric.result().values())))
    assert not any(np.isnan(list(result(metric, labels, predictions).values())))
    metric.reset_state()
    assert all(np.isnan(list(metric.result().values())))


def test_confusion_matrix_has_labels_in_rows_and_predictions_in_columns():
    metric = ConfusionMatrix()
    assert result(metric, [0, 0, 1, 3, 3], [0, 3, 1, 3, 1], chunks=2) == {}
    matrix = [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]]
    assert metric.table() == {"classes": ["0", "1", "2", "3"], "matrix": matrix}
    metric.class_names = ["a", "b", "c", "d"]
    assert metric.table()["classes"] == ["a", "b", "c", "d"]
    not_finite = ConfusionMatrix()
    result(not_finite, [0, 1], [[NAN, NAN], [0.0, 1.0]])
    np.testing.assert_array_equal(not_finite.matrix, [[0, 0], [0, 1]])


LABELS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
SCORES = np.array([[0.9, 0.2, 0.1], [0.4, 0.8, 0.1], [0.6, 0.8, 0.1], [0.1, 0.7, 0.1]])
# a: 1 right of 2 predicted and 2 that have it; b: 2 of 3 and 2; c: never.
F1 = [2 * 1 / 4, 2 * 2 / 5, 0.0]
# a: ranks 1 and 3 have it. b: two at the first threshold, both right.
PRECISION = [(1 + 2 / 3) / 2, 1.0, 0.0]
PROBABILITIES = [[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.6, 0.3]]
SAME = np.full((4, 1), 3.0)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize(
    ("make", "labels", "predictions", "expected"),
    [
        (PerClass, [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2], {
            "precision": (1 + 1 / 2 + 1 / 2) / 3,
            "precision/a": 1.0, "precision/b": 1 / 2, "precision/c": 1 / 2,
            "recall": (2 / 3 + 1 / 2 + 1) / 3,
            "recall/a": 2 / 3, "recall/b": 1 / 2, "recall/c": 1.0,
        }),
        # A class that is never predicted, one without examples, and one that is absent.
        (PerClass, [0, 0, 1], [0, 2, 0], {
            "precision": 1 / 2 / 3, "precision/b": 0.0, "precision/c": 0.0,
            "recall": 1 / 2 / 3, "recall/b": 0.0, "recall/c": 0.0,
        }),
        (PerClass, [0, 0, 1], [[NAN] * 2, [1.0, 0.0], [0.0, 1.0]], {
            "precision": 1.0, "precision/a": 1.0, "precision/b": 1.0,
            "recall": 0.75, "recall/a": 0.5, "recall/b": 1.0,
        }),
        (lambda: TopK(k=1), [0, 0, 0], PROBABILITIES, {"top_1": 1 / 3}),
        (lambda: TopK(k=2), [0, 0, 0], PROBABILITIES, {"top_2": 2 / 3}),
        (lambda: TopK(k=3), [0, 0, 0], PROBABILITIES, {"top_3": 1.0}),
        # Equally probable classes are no more probable.
        (lambda: TopK(k=2), [1], PROBABILITIES[1:2], {"top_2": 1.0}),
        (lambda: TopK(k=2), [0, 1, 0], [[NAN] * 3, [NAN, 0.4, 0.1], [0.5, 0.3, 0.2]],
         {"top_2": 1 / 3}),
        (CalibrationError, [0, 0], [[NAN, NAN], [1.0, 0.0]], {"calibration_error": NAN}),
        (MultilabelScores, LABELS, SCORES, {
            "f1_micro": 2 * 3 / 9, "f1_macro": (F1[0] + F1[1]) / 2,
            "average_precision": (PRECISION[0] + PRECISION[1]) / 2,
            "f1/a": F1[0], "f1/b": F1[1], "f1/c": F1[2],
            "average_precision/a": PRECISION[0], "average_precision/b": PRECISION[1],
            "average_precision/c": PRECISION[2],
        }),
        # Equal probabilities are one threshold.
        (MultilabelScores, [[1], [0], [1], [0]], np.full((4, 1), 0.5), {"average_precision": 0.5}),
        (MultilabelScores, [[0], [1], [0], [1]], np.full((4, 1), 0.5), {"average_precision": 0.5}),
        (MultilabelScores, LABELS, np.full([4, 3], NAN),
         {"f1_micro": 0.0, "f1_macro": 0.0, "average_precision": NAN}),
        (MultilabelScores, np.zeros((2, 2), int), np.zeros((2, 2)), {"f1_micro": NAN}),
        # A target that never changes is explained or not.
        (RegressionScores, SAME, SAME, {"rmse": 0.0, "r2": 1.0}),
        (RegressionScores, SAME, SAME + 1, {"rmse": 1.0, "r2": 0.0}),
        (RegressionScores, np.ones([4, 2]), np.full([4, 2], NAN), {"rmse": NAN, "r2": 0.0}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_values_are_those_by_hand(make, labels, predictions, expected, chunks):
    metric = make()
    metric.class_names = list("abcd")[: 4 if np.ndim(predictions) == 1 else len(predictions[0])]
    found = result(metric, labels, predictions, min(chunks, len(labels)))
    assert {key: found[key] for key in expected} == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("bins", [1, 15])
def test_calibration_error_equals_the_definition_of_the_paper(bins):
    random = np.random.default_rng(bins)
    probabilities = random.dirichlet(np.full(4, 0.3), 5000).astype(np.float32)
    labels = random.integers(0, 4, 5000)
    confidence = probabilities.max(axis=1).astype(np.float64)
    is_right = probabilities.argmax(axis=1) == labels
    total = 0.0
    for low in range(bins):
        inside = (confidence > low / bins) & (confidence <= (low + 1) / bins)
        total += abs(is_right[inside].sum() - confidence[inside].sum())
    whole = result(CalibrationError(bins=bins), labels, probabilities)
    assert whole["calibration_error"] == pytest.approx(total / len(labels), abs=1e-12)
    # The same bits for any batches.
    assert result(CalibrationError(bins=bins), labels, probabilities, chunks=7) == whole


RANDOM = np.random.default_rng(0)
TARGETS = RANDOM.normal(size=(50, 2)) * [1.0, 1000.0] + [1e6, -3.0]
PREDICTIONS = TARGETS + RANDOM.normal(size=(50, 2)) * [0.3, 400.0]


def regression(metric, columns=2, chunks=1):
    """Return the values; predictions stay float64."""
    metric.class_names = ["weight (kg)", "price"]
    for rows in np.array_split(np.arange(50), chunks):
        metric.update_state(TARGETS[rows, :columns], PREDICTIONS[rows, :columns])
    return metric.result()


@pytest.mark.parametrize("chunks", [1, 3])
def test_errors_of_numbers_are_exact_over_all_examples(chunks):
    errors = PREDICTIONS - TARGETS
    rmse = np.sqrt((errors**2).mean(axis=0))
    r2 = 1 - (errors**2).mean(axis=0) / TARGETS.var(axis=0)
    expected = {
        "rmse": rmse.mean(), "r2": r2.mean(),
        "rmse/weight_kg_": rmse[0], "rmse/price": rmse[1],
        "mae/weight_kg_": np.abs(errors[:, 0]).mean(), "mae/price": np.abs(errors[:, 1]).mean(),
        "r2/weight_kg_": r2[0], "r2/price": r2[1],
    }  # fmt: skip
    assert regression(RegressionScores(), chunks=chunks) == pytest.approx(expected, rel=1e-9)
    assert set(regression(RegressionScores(), columns=1)) == {"rmse", "r2"}
    assert set(regression(RegressionScores(most_targets=1))) == {"rmse", "r2"}
