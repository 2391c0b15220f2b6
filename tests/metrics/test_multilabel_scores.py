"""F1 scores and average precision against sums written out."""

import numpy as np
import pytest

from trainer.metrics.multilabel_scores import MultilabelScores

LABELS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
PROBABILITIES = np.array(
    [[0.9, 0.2, 0.1], [0.4, 0.8, 0.1], [0.6, 0.8, 0.1], [0.1, 0.7, 0.1]], np.float32
)


def scores(labels=LABELS, probabilities=PROBABILITIES, size=4, **options):
    metric = MultilabelScores(**options)
    metric.class_names = ["a", "b", "c"]
    for start in range(0, len(labels), size):
        metric.update_state(labels[start : start + size], probabilities[start : start + size])
    return metric.result()


@pytest.mark.parametrize("size", [4, 1])
def test_values_over_all_examples(size):
    found = scores(size=size)
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
        found = scores(labels[order], np.full((4, 1), 0.5, np.float32))
        assert found["average_precision"] == 0.5


def test_threshold_and_number_of_labels():
    metric = MultilabelScores(most_labels=2)
    metric.threshold = 0.85
    metric.update_state(LABELS, PROBABILITIES)
    assert metric.result()["f1_micro"] == pytest.approx(2 * 1 / 5)
    assert set(metric.result()) == {"f1_micro", "f1_macro", "average_precision"}


def test_without_examples_there_is_no_value():
    metric = MultilabelScores()
    assert all(np.isnan(list(metric.result().values())))
    metric.update_state(np.zeros((2, 2), int), np.zeros((2, 2), np.float32))
    assert np.isnan(metric.result()["f1_micro"])
    metric.reset_state()
    assert np.isnan(metric.result()["average_precision"])


def test_probabilities_that_are_nan_find_no_label():
    found = scores(probabilities=np.full([4, 3], np.nan, np.float32))
    assert (found["f1_micro"], found["f1_macro"]) == (0.0, 0.0)
    assert np.isnan(found["average_precision"])
