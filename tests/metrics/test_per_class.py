import math

import numpy as np
import pytest

from trainer.metrics.per_class import PerClass


def probabilities(predicted, num_classes):
    return np.eye(num_classes, dtype=np.float32)[predicted]


def result(labels, predicted, num_classes=3, names=(), chunks=1, **options):
    metric = PerClass(**options)
    metric.class_names = names
    for part, of in zip(np.array_split(np.array(labels), chunks), np.array_split(np.array(predicted), chunks), strict=True):
        metric.update_state(part, probabilities(of, num_classes))
    return metric.result()


@pytest.mark.parametrize("chunks", [1, 3])
def test_values_equal_those_by_hand(chunks):
    assert result([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2], chunks=chunks) == pytest.approx(
        {
            "precision": (1 + 1 / 2 + 1 / 2) / 3,
            "precision/0": 1.0,
            "precision/1": 1 / 2,
            "precision/2": 1 / 2,
            "recall": (2 / 3 + 1 / 2 + 1) / 3,
            "recall/0": 2 / 3,
            "recall/1": 1 / 2,
            "recall/2": 1.0,
        },
        abs=1e-15,
    )


def test_a_class_that_is_never_taken_or_has_no_example_counts_as_zero():
    found = result([0, 0, 1], [0, 2, 0])
    assert (found["precision/1"], found["recall/1"]) == (0.0, 0.0)  # never taken
    assert (found["precision/2"], found["recall/2"]) == (0.0, 0.0)  # has no example
    assert found["precision"] == pytest.approx(1 / 2 / 3)
    assert found["recall"] == pytest.approx(1 / 2 / 3)


def test_what_occurs_nowhere_is_not_in_the_averages():
    found = result([0, 1], [0, 1], num_classes=5)
    assert (found["precision/4"], found["recall/4"]) == (0.0, 0.0)
    assert (found["precision"], found["recall"]) == (1.0, 1.0)


def test_without_examples_the_averages_are_no_numbers():
    found = PerClass().result()
    assert found.keys() == {"precision", "recall"}
    assert all(math.isnan(value) for value in found.values())


def test_many_classes_have_averages_only():
    assert result([0, 1], [0, 1], num_classes=21).keys() == {"precision", "recall"}
    assert result([0, 1], [0, 1], num_classes=2, most_classes=1).keys() == {"precision", "recall"}
    assert len(result([0, 1], [0, 1], num_classes=20)) == 42


def test_classes_have_names_that_a_command_line_takes():
    assert set(result([0], [0], 2, names=["polar bear", "cat"])) == {
        "precision",
        "precision/polar_bear",
        "precision/cat",
        "recall",
        "recall/polar_bear",
        "recall/cat",
    }
    assert "recall/1" in result([0], [0], 2, names=["a b", "a_b"])


def test_weights_count_and_a_reset_forgets():
    metric = PerClass()
    metric.update_state(np.array([1, 1, 0]), probabilities([0, 0, 1], 2))
    metric.reset_state()
    metric.update_state(np.array([0, 0, 1]), probabilities([0, 1, 1], 2), np.array([3.0, 1.0, 1.0]))
    assert metric.result() == {
        "precision": 0.75,
        "precision/0": 1.0,
        "precision/1": 0.5,
        "recall": 0.875,
        "recall/0": 0.75,
        "recall/1": 1.0,
    }
