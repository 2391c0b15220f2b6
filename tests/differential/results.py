"""What a training comes to, and whether two of them are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CARRIED = "largest_error"
"""The metric of the grammar whose state is no sum."""
RELATIVE = 2e-4
"""How far apart two float32 numbers of the same metric may be, relative to them.

A metric is a mean over up to 300 numbers, each after some ten layers forward and back over three to
five steps. One rounding is 2**-24 = 6e-8; sums of n terms in another order are off by sqrt(n) of
it, at most 2e-6 here, and each step may amplify that by the step before: measured at most 3e-5.
"""
OF_MOVEMENT = 1e-3
"""The same of a weight, relative to how far its array has moved: a wrong factor in an update, such
as epsilon outside of the root, shows in the movement and not in the weight."""
OF_WEIGHT = 3e-6
"""Rounding of the weights themselves: the movement may be small."""
OF_SPREAD = 30.0
"""Where two runs are farther apart, the program is run again from weights that are moved by about
ten roundings: what this changes, times this factor, is no defect but the program's own nature: a
kink of ReLU that is crossed, the sign of a gradient that is nearly 0, a threshold of a metric."""


@dataclass(frozen=True)
class Results:
    """The results of a training."""

    history: Mapping[str, Sequence[float]]  # of each epoch, as `fit` returns it
    weights: Sequence[np.ndarray]
    predictions: Sequence[np.ndarray]  # for the examples of the evaluation
    start: Sequence[np.ndarray] = ()  # the weights before the first step; empty: not known

    def arrays(self):
        """Yield each number or array by name, the metrics first."""
        for name, value in sorted(self.history.items()):
            yield name, np.asarray(value, np.float64)
        for number, array in enumerate(self.weights):
            yield f"weight {number}", np.asarray(array, np.float64)
        for number, array in enumerate(self.predictions):
            yield f"prediction {number}", np.asarray(array, np.float64)

    @property
    def diverges(self):
        """Whether a metric is not a finite number."""
        return not all(np.isfinite(values).all() for values in self.history.values())

    def tolerances(self):
        """Return how far apart from each number or array another run may be."""
        found = {name: RELATIVE * max(_size(array), 1e-2) for name, array in self.arrays()}
        for number, (last, first) in enumerate(zip(self.weights, self.start, strict=False)):
            moved = _size(np.asarray(last, np.float64) - first)
            found[f"weight {number}"] = OF_MOVEMENT * moved + OF_WEIGHT * max(_size(last), 1e-2)
        return found


@dataclass(frozen=True)
class Difference:
    """What differs first between two results."""

    name: str
    expected: str
    got: str

    @property
    def kind(self):
        """What kind of result it is."""
        first = self.name.split()[0]
        return first if first in ("weight", "prediction", "names") else "metric"

    def __str__(self):
        return f"{self.name}: expected {self.expected}, got {self.got}"


def difference(expected, got, tolerances=None):
    """Return what differs most between two results, the weights first; None: they are the same.

    Without tolerances they must be equal to the bit.
    """
    wanted, found = dict(expected.arrays()), dict(got.arrays())
    # A line of the log says that training leaves out what cannot be added up over steps.
    left_out = [name for name in wanted if name not in found and name.endswith(CARRIED)]
    for name in left_out:
        if f"val_{name}" in found:
            del wanted[name]
    if wanted.keys() != found.keys():
        return Difference(
            "names",
            f"{sorted(wanted.keys() - found.keys())} too",
            f"{sorted(found.keys() - wanted.keys())} instead",
        )
    worst = None
    for name, array in wanted.items():
        other = found[name]
        if array.shape != other.shape:
            return Difference(name, f"shape {array.shape}", f"shape {other.shape}")
        if np.array_equal(array, other, equal_nan=True):
            continue
        limit = 0.0 if tolerances is None else tolerances[name]
        same = (array == other) | (np.isnan(array) & np.isnan(other))  # infinities too
        distances = np.where(same, 0.0, np.abs(array - other))
        distances = np.where(np.isnan(distances), np.inf, distances)
        place = np.unravel_index(np.argmax(distances), distances.shape)
        if distances[place] <= limit:
            continue
        ratio = float(distances[place] / limit) if limit else np.inf
        key = (name.startswith("weight"), ratio)
        if worst is None or key > worst[:2]:
            shown = f" at {tuple(map(int, place))}" if place else ""
            worst = (
                *key,
                Difference(f"{name}{shown}", repr(float(array[place])), repr(float(other[place]))),
            )
    return worst and worst[2]


def widened(tolerances, one, other):
    """Return tolerances that allow for how far apart two runs of one program are."""
    others = dict(other.arrays())
    return {
        name: tolerances[name] + OF_SPREAD * _size(array - others[name])
        for name, array in one.arrays()
    }


def weights_of(model):
    """Return the weights of a model of either Keras, without the variables of metrics."""
    counted = {id(v) for metric in model.metrics for v in metric.variables}
    return [np.asarray(v) for v in model.weights if id(v) not in counted]


def _size(array):
    finite = np.abs(np.asarray(array, np.float64))
    return float(np.max(finite[np.isfinite(finite)], initial=0.0))
