"""Errors of predicted numbers against NumPy."""

import numpy as np
import pytest

from trainer.metrics.regression_scores import RegressionScores

RANDOM = np.random.default_rng(0)
TARGETS = RANDOM.normal(size=(50, 2)) * [1.0, 1000.0] + [1e6, -3.0]
PREDICTIONS = TARGETS + RANDOM.normal(size=(50, 2)) * [0.3, 400.0]


def scores(targets, predictions, sizes=(50,), **options):
    """Return the values after updates with blocks of these sizes."""
    metric = RegressionScores(**options)
    metric.class_names = ["weight (kg)", "price"]
    start = 0
    for size in sizes:
        metric.update_state(targets[start : start + size], predictions[start : start + size])
        start += size
    return metric.result()


@pytest.mark.parametrize("sizes", [(50,), (1, 20, 29)])
def test_values_are_exact_over_all_examples(sizes):
    found = scores(TARGETS, PREDICTIONS, sizes)
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
    assert set(scores(TARGETS[:, :1], PREDICTIONS[:, :1])) == {"rmse", "r2"}
    assert set(scores(TARGETS, PREDICTIONS, most_targets=1)) == {"rmse", "r2"}


def test_target_that_never_changes_is_explained_or_not():
    same = np.full((4, 1), 3.0)
    assert scores(same, same, (4,)) == {"rmse": 0.0, "r2": 1.0}
    assert scores(same, same + 1, (4,)) == {"rmse": 1.0, "r2": 0.0}


def test_weight_of_zero_counts_for_nothing_and_no_example_is_nan():
    metric = RegressionScores()
    assert all(np.isnan(list(metric.result().values())))
    metric.update_state(TARGETS, PREDICTIONS, np.zeros(50))
    weights = np.repeat([0.0, 2.0], 25)
    metric.update_state(TARGETS, PREDICTIONS, weights)
    half = scores(TARGETS[25:], PREDICTIONS[25:], (25,))
    assert metric.result()["rmse"] == pytest.approx(half["rmse"], rel=1e-9)
    metric.reset_state()
    assert np.isnan(metric.result()["r2"])


def test_predictions_that_are_nan_explain_nothing():
    found = scores(np.ones([4, 2]), np.full([4, 2], np.nan))  # targets that are always the same
    assert np.isnan(found["rmse"])
    assert found["r2"] == 0.0
