"""The recipes of image classification, for a few steps on small data of their kind."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import recipe, variables
from trainer.datasets.cifar10 import TEST_FILE, TRAIN_FILES
from trainer.engine.engine import Engine


def train(directory: Path, *overrides: str) -> Engine:
    """Train; return the engine at its end."""
    run = recipe(directory, *overrides, "writers=[jsonl]")
    run.train(lambda: False)
    return run


def learning_rates(run: Engine, *steps: int) -> list[float]:
    return [rate for step in steps for rate in run.loop.learning_rates(step).values()]


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


@pytest.mark.long
def test_resnet50_imagenet_trains_on_a_folder_of_photographs(
    photographs: Path, tmp_path: Path
) -> None:
    run = train(
        tmp_path / "run",
        "experiment=resnet50_imagenet",
        f"dataset.path={photographs}",
        "dataset.image_size=[32,32]",
        "train.epochs=1",
        "batch.global_size=4",
    )
    assert int(run.state.step) == 3
    # Warm-up over 5 epochs of 3 steps, to 0.1 x 4 / 256.
    rates = learning_rates(run, 0, 14, 15, 90, 180, 240)
    peak = 0.1 * 4 / 256
    expected = [peak / 15, peak, peak, peak / 10, peak / 100, peak / 1000]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    values = variables(run)
    assert all(np.isfinite(value).all() for value in values.values())
    # Nothing but kernels decays.
    assert len(run.state.task.models["model"].losses) == 54


@pytest.mark.long
def test_resnet20_cifar10_trains_on_the_official_files(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in (*TRAIN_FILES, TEST_FILE):
        pixels = random.integers(0, 256, [8, 3072], np.uint8)
        batch = {b"data": pixels, b"labels": [*range(8)]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    run = train(
        tmp_path / "run",
        "experiment=resnet20_cifar10",
        f"dataset.path={folder}",
        "batch.global_size=8",
        "train.epochs=2",
    )
    assert int(run.state.step) == 10
    rates = learning_rates(run, 4, 9)
    assert rates[0] == pytest.approx(0.2 * 8 / 128)  # the peak, at the end of the first epoch
    assert 0 < rates[1] < 0.1 * rates[0]


@pytest.mark.long
def test_small_resnet_learns_the_digits(tmp_path: Path) -> None:
    options = ["model=resnet", "model.depth=8", "model.zero_gamma=true", "schedule=cosine"]
    train(tmp_path / "run", *options, "train.epochs=4", "optimizer.learning_rate=0.01")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    tests = [line for line in map(json.loads, lines) if line["split"] == "test"]
    assert tests[-1]["accuracy"] > 0.9
    assert tests[-1]["loss"] < 0.5 * tests[0]["loss"]


@pytest.mark.long
def test_char_lm_learns_the_words_of_its_grammar(tmp_path: Path) -> None:
    """The perplexity is near the best that is possible."""
    train(tmp_path / "run", "experiment=char_lm")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    tests = [line for line in map(json.loads, lines) if line["split"] == "test"]
    assert tests[-1]["loss"] > 0.3008  # the entropy of the grammar, in nats a byte
    assert tests[-1]["perplexity"] == pytest.approx(np.exp(tests[-1]["loss"]))
    assert tests[-1]["perplexity"] == pytest.approx(1.44, abs=0.02)
    words = (tmp_path / "run" / "samples.txt").read_text().split()
    assert {"the", "The"} & set(words)
