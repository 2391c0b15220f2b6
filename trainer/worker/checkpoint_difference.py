"""The largest difference of two checkpoints, as its own process.

Its arguments are the prefixes of their files. It prints JSON: the variable and the difference.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from trainer.cluster import environment


def largest_difference(prefix: str, other_prefix: str) -> tuple[str, float]:
    """Return the weight that differs most, and by how much; NaN counts as infinitely far.

    Of other variables only if no weight differs.
    """
    environment.prepare_environment()
    import tensorflow as tf

    first, other = (tf.train.load_checkpoint(path) for path in (prefix, other_prefix))
    names = [
        name
        for name in sorted(first.get_variable_to_shape_map())
        if not name.startswith("_CHECKPOINT") and other.has_tensor(name)
    ]
    distances = {
        name: _distance(np.asarray(first.get_tensor(name)), np.asarray(other.get_tensor(name)))
        for name in names
    }
    name = max(
        distances,
        key=lambda name: (name.startswith("models/") and distances[name], distances[name]),
    )
    return name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"), distances[name]


def _distance(value: np.ndarray, other: np.ndarray) -> float:
    if value.dtype.kind not in "fiub" or value.shape != other.shape:
        return 0.0
    difference = np.abs(value.astype(np.float64) - other.astype(np.float64))
    return float(np.max(np.nan_to_num(difference, nan=np.inf), initial=0.0))


if __name__ == "__main__":
    print(json.dumps(largest_difference(*sys.argv[1:])))
