"""The classes that probabilities predict."""

from __future__ import annotations

import numpy as np

NO_CLASS = -1
"""What probabilities that are not finite predict: it equals no label."""


def predicted_classes(probabilities: np.ndarray) -> np.ndarray:
    """Return the most probable class of each example, [B] int64, from probabilities, [B, C]."""
    is_finite = np.isfinite(probabilities).all(axis=1)
    return np.where(is_finite, np.argmax(probabilities, axis=1), NO_CLASS)
