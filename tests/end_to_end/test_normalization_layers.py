"""What batch normalization is over: the global batch, each replica's part, or each shard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.training import (
    ROUNDING,
    assert_same_bits,
    distance,
    finish,
    recipe,
    train,
    variables,
)

MIRRORED = ("strategy=mirrored", "strategy.virtual_devices=2")
OPTIONS = ("dataset=digits", "optimizer=sgd", "optimizer.learning_rate=0.05", "writers=[jsonl]")


def states(directory: Path, *overrides: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train; return every variable before and after."""
    run = recipe(directory, *OPTIONS, *overrides)
    return variables(run), finish(run)


@pytest.mark.slow
def test_cnn_that_normalizes_each_shard_has_the_bits_of_one_device(tmp_path):
    options = ["model.batch_norm=true", "model.synchronized=false", "batch.shards=4"]
    one = train(tmp_path / "one", *options, "train.steps=3")
    two = train(tmp_path / "two", *options, "train.steps=3", *MIRRORED)
    assert_same_bits(one, two)


@pytest.mark.slow
def test_synchronized_resnet_does_not_depend_on_the_number_of_replicas(tmp_path):
    options = ["model=resnet", "model.depth=8", "batch.global_size=16", "train.steps=1"]
    start, one = states(tmp_path / "one", *options, "model.synchronized=true")
    _, two = states(tmp_path / "two", *options, *MIRRORED, "model.synchronized=true")
    _, parts = states(tmp_path / "parts", *options, *MIRRORED)
    # A rounding error may select another branch of a ReLU: more than rounding alone.
    assert distance(one, two, start) < 100 * ROUNDING
    assert distance(one, parts, start) > 0.05


def test_frozen_layers_keep_their_bits_on_three_replicas(tmp_path):
    # The mean of three equal numbers may be another number.
    target = "model._target_=tests.support.toy_models.frozen"
    options = ["model=softmax", target, "~model.l2", "batch.global_size=12", "train.steps=2"]
    before, after = states(tmp_path / "run", *options, MIRRORED[0], "strategy.virtual_devices=3")
    weights = [name for name in before if name.startswith("/models")]
    changed = [name for name in weights if before[name].tobytes() != after[name].tobytes()]
    assert len(weights) == 8
    assert [after[name].shape for name in changed] == [(64, 10), (10,)]
