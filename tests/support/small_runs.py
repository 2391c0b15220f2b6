"""Runs of any model and dataset inside the test process, such as of tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import training
from trainer.engine.engine import Engine

SMALL = ("train.steps=8", "batch.global_size=16", "summary.every_steps=50", "writers=[jsonl]")


def engine(run_dir: Path, *overrides: str, **options: Any) -> Engine:
    """Build the engine of a run."""
    return recipe(run_dir, *SMALL, *overrides, **options)


def recipe(run_dir: Path, *overrides: str, **options: Any) -> Engine:
    """Build the engine of a run of the length that its recipe has."""
    return training.recipe(run_dir, "writers=[jsonl]", *overrides, **options)


def train(
    run_dir: Path, *overrides: str, stop: Callable[[Engine], bool] = lambda engine: False
) -> dict[str, np.ndarray]:
    """Train to the end, or until `stop`; return every variable of the state by name."""
    return training.finish(engine(run_dir, *overrides), stop)
