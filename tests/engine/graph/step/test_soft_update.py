"""Soft updates: the recurrence, the same numbers on every strategy, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest

from tests.support.training import TWO, assert_same_bits, finish, recipe
from trainer.errors import ConfigError

TARGET = (
    "task._target_=tests.support.toy_targets.WithTarget", "~task.label_smoothing",
    "~task.class_weights", "~task.focal_gamma", "model=softmax", "optimizer=sgd",
    "optimizer.learning_rate=0.05", "train.steps=3", "train.steps_per_loop=1",
    "batch.global_size=16", "writers=[jsonl]",
)  # fmt: skip
MODELS = {
    "tf_keras": ("model=cnn", "model.width=2", "model.batch_norm=true"),
    "Keras 3": ("~model.l2", "model._target_=tests.support.keras3_models.conv_net"),
}


def engine(run_dir, *overrides):
    return recipe(run_dir, *TARGET, *overrides)


def history(run_dir, *overrides):
    """Train; return the variables of the model and of the target before each step and after all."""
    run = engine(run_dir, *overrides)
    models = run.state.task.models
    seen = []

    def look():
        if len(seen) == run.step:
            seen.append(
                {name: [np.array(value) for value in models[name].get_weights()] for name in models}
            )
        return False

    run.train(look)
    look()
    return seen, run


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_target_follows_its_recurrence_statistics_included(tmp_path, model):
    seen, run = history(tmp_path, *MODELS[model], *TWO)
    assert len(seen) == 4
    for before, after in pairwise(seen):
        for own, source, moved in zip(
            before["target"], after["model"], after["target"], strict=True
        ):
            # Three roundings of numbers near 1.
            np.testing.assert_allclose(moved, own + 0.25 * (source - own), rtol=0, atol=4 * 2**-24)
    assert any(
        np.any(own != source)
        for own, source in zip(seen[-1]["target"], seen[-1]["model"], strict=True)
    )
    assert not run.state.task.models["target"].trainable_variables
    assert list(run.state.task.optimizers) == ["model"]


@pytest.mark.slow
def test_stopped_run_continues_with_its_target_to_the_bit(tmp_path):
    whole = finish(engine(tmp_path / "whole", *TWO))
    finish(engine(tmp_path / "cut", *TWO), lambda run: run.step == 2)
    assert_same_bits(finish(engine(tmp_path / "cut", *TWO)), whole)


@pytest.mark.slow
def test_dropped_update_moves_no_target(tmp_path):
    run = engine(tmp_path, "divergence.action=skip", "train.steps=1")
    models = run.state.task.models
    (kernel, _) = models["model"].trainable_variables
    kernel.assign(np.full(kernel.shape, np.nan, np.float32))
    before = models["target"].get_weights()
    run.train(lambda: False)
    assert int(run.state.divergence_monitor.skipped) == 1
    for old, new in zip(before, models["target"].get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("+task.tau=1.5", r"soft_update was given tau=1.5, which must be in \[0, 1\]"),
        ("+task.other_target=true", r"cannot move \S+ \[64, 3\] .* toward \S+ \[64, 10\] float32"),
    ],
)
def test_immovable_data_is_refused_in_one_line(tmp_path, option, problem):
    run = engine(tmp_path, option)
    with pytest.raises(ConfigError, match=problem):
        run.train(lambda: False)
