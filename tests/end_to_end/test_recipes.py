"""The recipes: they reach their figures, or train for a few steps on small data of their kind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import recipe, variables
from trainer.engine.engine import Engine

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


def trained(directory: Path, *overrides: str) -> tuple[Engine, list[dict[str, float]]]:
    """Train; return the engine at its end, and the metrics of the test split, in order."""
    engine = recipe(directory, *overrides, "writers=[jsonl]")
    engine.train(lambda: False)
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return engine, [line for line in lines if line["split"] == "test"]


@pytest.mark.parametrize("name", FIGURES)
def test_recipe_reaches_its_figures(tmp_path: Path, name: str) -> None:
    cache = [f"dataset.cache_dir={tmp_path / 'cache'}"] if name == "sentiment" else []
    _, (*_, last) = trained(tmp_path / "run", f"experiment={name}", *cache)
    for metric, (low, high) in FIGURES[name].items():
        assert low <= last[metric] <= high, metric


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """JPEG files of several sizes in ImageNet's layout, three classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for label in ("n01440764", "n01443537", "n01484850"):
            folder = tmp_path / "imagenet" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, [40 + 9 * number, 70 - 5 * number, 3], np.uint8)
                (folder / f"{number}.JPEG").write_bytes(tf.io.encode_jpeg(pixels).numpy())
    return tmp_path / "imagenet"


def test_resnet50_imagenet_trains_on_a_folder_of_photographs(
    photographs: Path, tmp_path: Path
) -> None:
    options = [f"dataset.path={photographs}", "dataset.image_size=[32,32]", "train.epochs=1"]
    engine, _ = trained(
        tmp_path / "run", "experiment=resnet50_imagenet", *options, "batch.global_size=4"
    )
    assert int(engine.state.step) == 3
    # Warm-up over 5 epochs of 3 steps, to 0.1 x 4 / 256.
    steps = (0, 14, 15, 90, 180, 240)
    rates = [rate for step in steps for rate in engine.loop.learning_rates(step).values()]
    peak = 0.1 * 4 / 256
    expected = [peak / 15, peak, peak, peak / 10, peak / 100, peak / 1000]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    assert all(np.isfinite(value).all() for value in variables(engine).values())
    # Nothing but kernels decays.
    assert len(engine.state.task.models["model"].losses) == 54
