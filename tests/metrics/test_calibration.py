"""The expected calibration error, against values by hand."""

import math

import numpy as np
import pytest

from trainer.metrics.calibration import CalibrationError


def error(labels, probabilities, **options):
    metric = CalibrationError(**options)
    metric.update_state(np.array(labels), np.array(probabilities, np.float32))
    return metric.result()["calibration_error"]


def by_definition(labels, probabilities, bins):
    confidence, right = (
        probabilities.max(axis=1).astype(np.float64),
        probabilities.argmax(axis=1) == labels,
    )
    total = 0.0
    for low in range(bins):
        inside = (confidence > low / bins) & (confidence <= (low + 1) / bins)
        if inside.any():
            total += (
                inside.sum() / len(labels) * abs(right[inside].mean() - confidence[inside].mean())
            )
    return total


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
    probabilities, labels = (
        random.dirichlet(np.ones(3), 1000).astype(np.float32),
        random.integers(0, 3, 1000),
    )
    metric = CalibrationError()
    for part in np.array_split(np.arange(1000), 7):
        metric.update_state(labels[part], probabilities[part])
    assert metric.result()["calibration_error"] == error(labels, probabilities)


def test_calibration_error_uses_weights_and_reset():
    metric = CalibrationError()
    assert math.isnan(metric.result()["calibration_error"])
    metric.update_state([1], np.array([[1.0, 0.0]]))
    metric.reset_state()
    metric.update_state([0, 1], np.array([[1.0, 0.0], [1.0, 0.0]]), [3.0, 1.0])
    assert metric.result() == {"calibration_error": 0.25}


@pytest.mark.filterwarnings("error")
def test_error_of_probabilities_that_are_not_finite_is_nan():
    assert math.isnan(error([0, 0], [[math.nan, math.nan], [1.0, 0.0]]))
