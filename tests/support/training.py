"""Runs of the engine inside the test process, and comparisons of their states."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.support.scratch import new_folder
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Line

SHORT = (
    "train.steps=8",
    "batch.global_size=16",
    "summary.every_steps=50",  # graph calls of several steps
    "writers=[jsonl]",
)
SMALL = ("model=cnn", "model.width=4", "model.dropout=0", "dataset=digits", *SHORT)
TWO = ("strategy=mirrored", "strategy.virtual_devices=2")
CENTRAL = ("strategy=central_storage", "strategy.virtual_devices=2")
RANDOM = ("model.dropout=0.3", "model.batch_norm=true", "augment.crop=1", "augment.brightness=0.2")
"""Everything that is random or keeps statistics."""

ROUNDING = 2.0 * 6 * 32 * 2.0**-24
"""How far apart rounding alone may move the weights of two runs, see `distance`: 2.3e-5.

float32 has 24 bits, so one rounding is off by 2**-24. A sum of n terms in another order, or by
another kernel, is off by about sqrt(n) times that; the largest sums of SMALL, over 16 images of
8 x 8 pixels, have 1024 terms. A gradient passes three layers forward and three back, so there are 6
such sums, and each of two runs is off: hence 2 * 6 * 32. Measured: 1e-6 at most.
"""

LOW_PRECISION_ROUNDING = 0.3
"""The same where layers compute in float16, with 11 bits, or in bfloat16, with 8.

The formula above gives 0.19 for float16 if a kernel adds up in float16 too, and no bound for
bfloat16. Measured: 0.02 to 0.13, depending on the processor. A gradient that is reduced, cast or
scaled wrongly is off by a factor of 2 or more: a distance of 0.5 at least.
"""


def recipe(run_dir, *overrides, receive=lambda message: None):
    """Build the engine of a run of these overrides alone; `receive` takes its messages."""
    from trainer.worker.training import TrainingRun

    run_dir.mkdir(parents=True, exist_ok=True)
    return TrainingRun(compose(list(overrides)), run_dir, Channel(receive)).engine


def engine(run_dir, *overrides, **options):
    """Build the engine of a small run."""
    return recipe(run_dir, *SMALL, *overrides, **options)


def short_engine(run_dir, *overrides, **options):
    """Build the engine of a short run of any model and dataset."""
    return recipe(run_dir, *SHORT, *overrides, **options)


def lines_of(messages):
    """Return the lines for the user among messages."""
    return [message.text for message in messages if isinstance(message, Line)]


def train(run_dir, *overrides, stop=lambda engine: False):
    """Train to the end, or until `stop`; return every variable of the state by name."""
    return finish(engine(run_dir, *overrides), stop)


def finish(run, stop=lambda engine: False):
    """Train a run to its end, or until `stop`; return every variable of the state by name."""
    run.train(lambda: stop(run))
    return variables(run)


class Trained(NamedTuple):
    """A finished run.

    Attributes:
        run_dir: its directory; tests only read it.
        variables: every variable of the final state by name.
    """

    run_dir: Path
    variables: dict[str, np.ndarray]


@functools.cache
def trained(*overrides):
    """Train to the end, once in this process for all tests that compare with it."""
    run_dir = new_folder()
    return Trained(run_dir, train(run_dir, *overrides))


def variables(run):
    """Return every variable of the state by name."""
    import tensorflow as tf

    values = {}

    def walk(node, name):
        if isinstance(node, dict):
            for key, value in node.items():
                walk(value, f"{name}/{key}")
        elif isinstance(node, list):
            for number, value in enumerate(node):
                walk(value, f"{name}/{number}")
        elif isinstance(node, tf.Module):  # a model of either Keras
            walk([variable for variable in node.variables], name)
        elif isinstance(node, tf.keras.optimizers.legacy.Optimizer):
            walk(node.variables(), name)
        else:
            values[name] = np.asarray(node.read_value())

    walk(run.state.trackables(), "")
    return values


def weights(state):
    """Return all model variables as one vector."""
    return np.concatenate(
        [value.ravel() for name, value in sorted(state.items()) if name.startswith("/models")]
    )


def distance(a, b, initial):
    """Return how far apart the weights of two states are, relative to the movement of the first."""
    movement = np.linalg.norm(weights(a) - weights(initial))
    return float(np.linalg.norm(weights(a) - weights(b)) / movement)


def assert_same_bits(a, b):
    """Compare two states bit for bit."""
    assert a.keys() == b.keys()
    different = [name for name in a if a[name].tobytes() != b[name].tobytes()]
    assert not different, f"not bit-equal: {different}"
