"""Metrics of classes, labels and numbers, against values by hand and by definition."""

import numpy as np
import pytest

from trainer.metrics.calibration import CalibrationError
from trainer.metrics.confusion import ConfusionMatrix
from trainer.metrics.multilabel_scores import MultilabelScores
from trainer.metrics.per_class import PerClass
from trainer.metrics.regression_scores import RegressionScores
from trainer.metrics.top_k import TopK


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
    metric.update_state(np.array(labels), np.array(predictions, np.float32))
    assert not any(np.isnan(list(metric.result().values())))
    metric.reset_state()
    assert all(np.isnan(list(metric.result().values())))


def certain(predicted, num_classes):
    return np.eye(num_classes, dtype=np.float32)[predicted]


def test_confusion_matrix_has_labels_in_rows_and_predictions_in_columns():
    metric = ConfusionMatrix()
    metric.update_state(np.array([0, 0, 1]), certain([0, 2, 1], 3))
    metric.update_state(np.array([2, 2]), certain([2, 1], 3))
    np.testing.assert_array_equal(metric.matrix, [[1, 0, 1], [0, 1, 0], [0, 1, 1]])
    assert metric.result() == {}
    assert metric.table()["classes"] == ["0", "1", "2"]
    metric.class_names = ["a", "b", "c"]
    assert metric.table() == {
        "classes": ["a", "b", "c"],
        "matrix": [[1, 0, 1], [0, 1, 0], [0, 1, 1]],
    }


def test_probabilities_that_are_not_finite_are_in_no_column():
    metric = ConfusionMatrix()
    metric.update_state(np.array([0, 1]), np.array([[np.nan, np.nan], [0.0, 1.0]]))
    np.testing.assert_array_equal(metric.matrix, [[0, 0], [0, 1]])


def result(labels, predicted, num_classes=3, names=(), chunks=1, **options):
    metric = PerClass(**options)
    metric.class_names = names
    for part, of in zip(
        np.array_split(np.array(labels), chunks),
        np.array_split(np.array(predicted), chunks),
        strict=True,
    ):
        metric.update_state(part, certain(of, num_classes))
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


def test_probabilities_that_are_not_finite_have_no_precision():
    metric = PerClass()
    metric.update_state(np.array([0, 0, 1]), np.array([[np.nan] * 2, [1.0, 0.0], [0.0, 1.0]]))
    assert metric.result() == pytest.approx({
        "precision": 1.0, "precision/0": 1.0, "precision/1": 1.0,
        "recall": 0.75, "recall/0": 0.5, "recall/1": 1.0,
    })  # fmt: skip


PROBABILITIES = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.6, 0.3]], np.float32)


@pytest.mark.parametrize(("k", "share"), [(1, 1 / 3), (2, 2 / 3), (3, 1.0)])
def test_value_has_the_name_of_its_k(k, share):
    metric = TopK(k=k)
    metric.update_state(np.array([0, 0, 0]), PROBABILITIES)
    assert metric.result() == {f"top_{k}": pytest.approx(share)}


def test_equally_probable_classes_are_no_more_probable():
    metric = TopK(k=2)
    metric.update_state(np.array([1]), PROBABILITIES[1:2])
    assert metric.result() == {"top_2": 1.0}


def test_predictions_that_are_not_finite_are_wrong():
    metric = TopK(k=2)
    probabilities = np.array([[np.nan] * 3, [np.nan, 0.4, 0.1], [0.5, 0.3, 0.2]], np.float32)
    metric.update_state(np.array([0, 1, 0]), probabilities)
    assert metric.result() == {"top_2": pytest.approx(1 / 3)}


def error(labels, probabilities, **options):
    metric = CalibrationError(**options)
    metric.update_state(np.array(labels), np.array(probabilities, np.float32))
    return metric.result()["calibration_error"]


def by_definition(labels, probabilities, bins):
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    total = 0.0
    for low in range(bins):
        inside = (confidence > low / bins) & (confidence <= (low + 1) / bins)
        total += abs(right[inside].sum() - confidence[inside].sum())
    return total / len(labels)


@pytest.mark.parametrize("bins", [1, 15])
def test_calibration_error_equals_the_definition_of_the_paper(bins):
    random = np.random.default_rng(bins)
    probabilities = random.dirichlet(np.full(4, 0.3), 5000).astype(np.float32)
    labels = random.integers(0, 4, 5000)
    assert error(labels, probabilities, bins=bins) == pytest.approx(
        by_definition(labels, probabilities, bins), abs=1e-12
    )


def test_calibration_error_is_the_same_to_the_bit_for_any_batches():
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(3), 1000).astype(np.float32)
    labels = random.integers(0, 3, 1000)
    metric = CalibrationError()
    for part in np.array_split(np.arange(1000), 7):
        metric.update_state(labels[part], probabilities[part])
    assert metric.result()["calibration_error"] == error(labels, probabilities)


@pytest.mark.filterwarnings("error")
def test_error_of_probabilities_that_are_not_finite_is_nan():
    assert np.isnan(error([0, 0], [[np.nan, np.nan], [1.0, 0.0]]))


LABELS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
SCORES = np.array([[0.9, 0.2, 0.1], [0.4, 0.8, 0.1], [0.6, 0.8, 0.1], [0.1, 0.7, 0.1]], np.float32)


def multilabel(labels=LABELS, probabilities=SCORES, size=4, **options):
    metric = MultilabelScores(**options)
    metric.class_names = ["a", "b", "c"]
    for start in range(0, len(labels), size):
        metric.update_state(labels[start : start + size], probabilities[start : start + size])
    return metric.result()


@pytest.mark.parametrize("size", [4, 1])
def test_values_over_all_examples(size):
    found = multilabel(size=size)
    # a: 1 right of 2 predicted and 2 that have it; b: 2 of 3 and 2; c: never.
    f1 = [2 * 1 / 4, 2 * 2 / 5, 0.0]
    # a: ranks 1 and 3 have it. b: two at the first threshold, both right.
    precision = [(1 + 2 / 3) / 2, 1.0, 0.0]
    assert found == pytest.approx({
        "f1_micro": 2 * 3 / 9, "f1_macro": (f1[0] + f1[1]) / 2,
        "average_precision": (precision[0] + precision[1]) / 2,
        "f1/a": f1[0], "f1/b": f1[1], "f1/c": f1[2],
        "average_precision/a": precision[0], "average_precision/b": precision[1],
        "average_precision/c": precision[2],
    })  # fmt: skip


def test_equal_probabilities_are_one_threshold():
    labels = np.array([[1], [0], [1], [0]])
    for order in ([0, 1, 2, 3], [1, 0, 3, 2]):
        found = multilabel(labels[order], np.full((4, 1), 0.5, np.float32))
        assert found["average_precision"] == 0.5


def test_threshold_and_number_of_labels():
    metric = MultilabelScores(most_labels=2)
    metric.threshold = 0.85
    metric.update_state(LABELS, SCORES)
    assert metric.result()["f1_micro"] == pytest.approx(2 * 1 / 5)
    assert set(metric.result()) == {"f1_micro", "f1_macro", "average_precision"}


def test_without_examples_there_is_no_value():
    metric = MultilabelScores()
    metric.update_state(np.zeros((2, 2), int), np.zeros((2, 2), np.float32))
    assert np.isnan(metric.result()["f1_micro"])


def test_probabilities_that_are_nan_find_no_label():
    found = multilabel(probabilities=np.full([4, 3], np.nan, np.float32))
    assert (found["f1_micro"], found["f1_macro"]) == (0.0, 0.0)
    assert np.isnan(found["average_precision"])


RANDOM = np.random.default_rng(0)
TARGETS = RANDOM.normal(size=(50, 2)) * [1.0, 1000.0] + [1e6, -3.0]
PREDICTIONS = TARGETS + RANDOM.normal(size=(50, 2)) * [0.3, 400.0]


def regression(targets, predictions, sizes=(50,), **options):
    """Return the values after updates with blocks of these sizes."""
    metric = RegressionScores(**options)
    metric.class_names = ["weight (kg)", "price"]
    start = 0
    for size in sizes:
        metric.update_state(targets[start : start + size], predictions[start : start + size])
        start += size
    return metric.result()


@pytest.mark.parametrize("sizes", [(50,), (1, 20, 29)])
def test_errors_are_exact_over_all_examples(sizes):
    found = regression(TARGETS, PREDICTIONS, sizes)
    errors = PREDICTIONS - TARGETS
    rmse = np.sqrt((errors**2).mean(axis=0))
    r2 = 1 - (errors**2).mean(axis=0) / TARGETS.var(axis=0)
    expected = {
        "rmse": rmse.mean(), "r2": r2.mean(),
        "rmse/weight_kg_": rmse[0], "rmse/price": rmse[1],
        "mae/weight_kg_": np.abs(errors[:, 0]).mean(), "mae/price": np.abs(errors[:, 1]).mean(),
        "r2/weight_kg_": r2[0], "r2/price": r2[1],
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-9)


def test_one_target_and_many_have_no_values_of_each():
    assert set(regression(TARGETS[:, :1], PREDICTIONS[:, :1])) == {"rmse", "r2"}
    assert set(regression(TARGETS, PREDICTIONS, most_targets=1)) == {"rmse", "r2"}


def test_target_that_never_changes_is_explained_or_not():
    same = np.full((4, 1), 3.0)
    assert regression(same, same, (4,)) == {"rmse": 0.0, "r2": 1.0}
    assert regression(same, same + 1, (4,)) == {"rmse": 1.0, "r2": 0.0}


def test_predictions_that_are_nan_explain_nothing():
    found = regression(np.ones([4, 2]), np.full([4, 2], np.nan))  # targets that are always the same
    assert np.isnan(found["rmse"])
    assert found["r2"] == 0.0
