"""Batch normalization over the global batch, computed in parts: as if it were one."""

import numpy as np
import pytest

from tests.support.training import ROUNDING, assert_same_bits, distance, engine, train, variables

MODEL = [
    "model._target_=tests.support.toy_models.globally_normalized",
    *(f"~model.{option}" for option in ("width", "dropout", "batch_norm", "synchronized", "l2")),
    "optimizer=sgd",
    "train.steps=4",
]
TWO = ["strategy.virtual_devices=2", "batch.accumulate=4"]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The state before and after 4 steps, each batch in one pass."""
    folder = tmp_path_factory.mktemp("single")
    return variables(engine(folder / "initial", *MODEL)), train(folder / "whole", *MODEL)


PARTS = {
    "mirrored": ["strategy=mirrored", *TWO],
    "central storage": ["strategy=central_storage", *TWO],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * n.startswith("central")) for n in PARTS]
)
def test_parts_train_like_one_batch(tmp_path, single, name):
    initial, whole = single
    cut = train(tmp_path, *MODEL, *PARTS[name])
    assert distance(whole, cut, initial) <= ROUNDING


@pytest.mark.slow
def test_moving_statistics_are_those_of_one_batch(tmp_path, single):
    initial, whole = single
    cut = train(tmp_path, *MODEL, "batch.accumulate=8")
    assert distance(whole, cut, initial) <= ROUNDING
    names = [name for name in whole if name.startswith("/models")]
    moving = [name for name in names if np.ndim(whole[name]) == 1]
    assert any(np.abs(whole[name] - initial[name]).max() > 0.1 for name in moving)
    for name in moving:
        # Sums of 16 float32 numbers, over 4 steps.
        np.testing.assert_allclose(cut[name], whole[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_shards_have_the_same_bits_on_two_replicas_and_agree_with_one_batch(tmp_path, single):
    initial, whole = single
    shards = [*MODEL, "batch.shards=4", "batch.accumulate=2"]
    one = train(tmp_path / "one", *shards)
    two = train(tmp_path / "two", *shards, "strategy=mirrored", "strategy.virtual_devices=2")
    assert_same_bits(one, two)
    assert distance(whole, one, initial) <= ROUNDING
