"""Short runs of a model on the digits, inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.training import assert_same_bits, finish, recipe
from trainer.engine.engine import Engine

OPTIONS = (
    "dataset=digits",
    "train.steps=2",
    "train.steps_per_loop=1",
    "batch.global_size=8",
    "writers=[jsonl]",
)


def train(
    run_dir: Path, *overrides: str, stop: Callable[[Engine], bool] = lambda run: False
) -> dict[str, np.ndarray]:
    """Train to the end, or until `stop`; return every variable of the state by name."""
    return finish(recipe(run_dir, *OPTIONS, *overrides), stop)


def assert_continues(tmp_path: Path, *overrides: str) -> None:
    """Stop a run after its first step, continue it, and compare it with one that was not."""
    straight = train(tmp_path / "straight", *overrides)
    train(tmp_path / "stopped", *overrides, stop=lambda run: run.step >= 1)
    assert_same_bits(straight, train(tmp_path / "stopped", *overrides))
