"""The recipes reach their figures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.processes import log
from tests.support.training import recipe

pytestmark = pytest.mark.long

FIGURES = {
    # Of four seeds: 49.3 to 50.5, and 0.495 to 0.518.
    "diabetes": {"rmse": (48, 52), "r2": (0.48, 0.54)},
    "breast_cancer": {"accuracy": (0.95, 1)},
    "sentiment": {"accuracy": (0.9, 1)},
    "segment_shapes": {"mean_iou": (0.89, 0.95), "iou/0": (0.95, 1), "accuracy": (0.95, 1)},
    "char_lm": {"perplexity": (math.exp(0.3008), 1.46)},
}
"""Recipe -> the range of each metric at its end."""


@pytest.mark.parametrize("name", FIGURES)
def test_recipe_reaches_its_figures(tmp_path: Path, name: str) -> None:
    cache = [f"dataset.cache_dir={tmp_path / 'cache'}"] if name == "sentiment" else []
    run_dir = tmp_path / "run"
    recipe(run_dir, f"experiment={name}", *cache, "writers=[jsonl]").train(lambda: False)
    *_, last = (line for line in log(run_dir) if line["split"] == "test")
    for metric, (low, high) in FIGURES[name].items():
        assert low <= last[metric] <= high, metric
