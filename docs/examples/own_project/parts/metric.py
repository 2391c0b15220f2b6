"""Your own metric: the mean probability of the label."""

import numpy as np


class Confidence:
    direction = "max"

    def __init__(self):
        self.probabilities = []

    reset_state = __init__

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.probabilities.append(np.take_along_axis(y_pred, y_true[:, None], axis=1))

    def result(self):
        return float(np.concatenate(self.probabilities).mean())
