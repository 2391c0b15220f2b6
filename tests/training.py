"""Runs of the engine inside the test process, and what is compared of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import build
from trainer.channel import Channel
from trainer.cli import compose
from trainer.engine import Engine

SMALL = (
    "model=cnn",
    "model.width=4",
    "model.dropout=0",
    "dataset=digits",
    "train.steps=8",
    "batch.global_size=16",
    "summary.writers=[jsonl]",
)
RANDOM = ("model.dropout=0.3", "model.batch_norm=true", "dataset.crop=1", "dataset.brightness=0.2")
"""Everything that is random or keeps statistics."""


def engine(run_dir: Path, *overrides: str) -> Engine:
    """Builds the engine of a run."""
    run_dir.mkdir(parents=True, exist_ok=True)
    return build.engine(compose([*SMALL, *overrides]), run_dir, Channel(lambda message: None))


def train(run_dir: Path, *overrides: str, stop: Callable[[Engine], bool] = lambda engine: False) -> dict[str, np.ndarray]:
    """Trains to the end, or until `stop`, and gives every variable of the state by name."""
    made = engine(run_dir, *overrides)
    made.train(lambda: stop(made))
    return variables(made)


def variables(made: Engine) -> dict[str, np.ndarray]:
    """Gives every variable of the state by name."""
    found: dict[str, np.ndarray] = {}

    def walk(node: Any, name: str) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(value, f"{name}/{key}")
        elif isinstance(node, list):
            for number, value in enumerate(node):
                walk(value, f"{name}/{number}")
        elif isinstance(node, tf.keras.Model):
            walk([variable for variable in node.variables], name)
        elif isinstance(node, tf.keras.optimizers.legacy.Optimizer):
            walk(node.variables(), name)
        else:
            found[name] = np.asarray(node.read_value())

    walk(made.state.trackables(), "")
    return found


def weights(found: dict[str, np.ndarray]) -> np.ndarray:
    """Gives all model variables as one vector."""
    return np.concatenate([value.ravel() for name, value in sorted(found.items()) if name.startswith("/models")])


def assert_same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    """Compares two states bit for bit."""
    assert a.keys() == b.keys()
    different = [name for name in a if a[name].tobytes() != b[name].tobytes()]
    assert not different, f"not bit-equal: {different}"
