"""How often the label is among the most probable classes."""

import numpy as np
import pytest

from trainer.metrics.top_k import TopK

PROBABILITIES = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.6, 0.3]], np.float32)


@pytest.mark.parametrize(("k", "share"), [(1, 1 / 3), (2, 2 / 3), (3, 1.0)])
def test_value_has_the_name_of_its_k(k, share):
    metric = TopK(k=k)
    metric.update_state(np.array([0, 0, 0]), PROBABILITIES)
    assert metric.result() == {f"top_{k}": pytest.approx(share)}
    metric.reset_state()
    assert np.isnan(metric.result()[f"top_{k}"])


def test_equally_probable_classes_are_no_more_probable():
    metric = TopK(k=2)
    metric.update_state(np.array([1]), PROBABILITIES[1:2], np.array([3.0]))
    assert metric.result() == {"top_2": 1.0}


def test_predictions_that_are_not_finite_are_wrong():
    metric = TopK(k=2)
    probabilities = np.array([[np.nan] * 3, [np.nan, 0.4, 0.1], [0.5, 0.3, 0.2]], np.float32)
    metric.update_state(np.array([0, 1, 0]), probabilities)
    assert metric.result() == {"top_2": pytest.approx(1 / 3)}
