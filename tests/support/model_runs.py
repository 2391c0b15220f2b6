"""Short runs of a model on the digits, inside the test process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.training import finish, recipe

OPTIONS = (
    "dataset=digits", "train.steps=2", "train.steps_per_loop=1", "batch.global_size=8",
    "writers=[jsonl]",
)  # fmt: skip


def train(run_dir: Path, *overrides: str) -> dict[str, np.ndarray]:
    """Train to the end; return every variable of the state by name."""
    return finish(recipe(run_dir, *OPTIONS, *overrides))
