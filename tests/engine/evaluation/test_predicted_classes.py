"""The classes that probabilities predict."""

import numpy as np

from trainer.engine.evaluation.predicted_classes import predicted_classes


def test_probabilities_that_are_not_finite_predict_no_class():
    rows = [[0.1, 0.9], [np.nan, np.nan], [np.nan, 0.5], [np.inf, 0.0], [1.0, 0.0]]
    assert predicted_classes(np.array(rows, np.float32)).tolist() == [1, -1, -1, -1, 0]
