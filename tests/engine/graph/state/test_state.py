"""Frozen layers and groups of weights, in runs of the engine; the loss scale."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import engine
from trainer.engine.graph.state.variables import LossScale
from trainer.engine.graph.state.weight_paths import variable_key, weights_of
from trainer.errors import ConfigError

EVERYTHING = (
    "model._target_=tests.support.toy_models.blocks", "train.ema_decay=0.9",
    "train.clip_norm=0.5", "model.batch_norm=true", "model.synchronized=false",
)  # fmt: skip
THREE = ("strategy=mirrored", "strategy.virtual_devices=3", "batch.global_size=18")


def model_of(run):
    return next(iter(run.state.task.models.values()))


def values(run):
    """Return the weights, and the slots of the optimizer."""
    optimizer = next(iter(run.state.task.optimizers.values()))
    trained = {variable_key(variable) for variable in model_of(run).trainable_variables}
    result = {}
    for weight in weights_of(run.state.task.models):
        (variable,) = weight.variables
        result[weight.path] = variable.numpy()
        for slot in optimizer.get_slot_names() if variable_key(variable) in trained else ():
            result[f"{weight.path}/{slot}"] = optimizer.get_slot(variable, slot).numpy()
    return result


@pytest.mark.parametrize("strategy", [(), pytest.param(THREE, marks=pytest.mark.slow)])
def test_frozen_layers_keep_their_bits(tmp_path, strategy):
    options = (*EVERYTHING, "train.freeze=[stem]", *strategy)
    run = engine(tmp_path, *options)
    before = values(run)
    run.train(lambda: False)
    after = values(run)
    kept = [name for name in before if before[name].tobytes() == after[name].tobytes()]
    assert kept == [name for name in before if name.startswith("stem")]
    assert len(kept) == 6
    assert len(model_of(run).trainable_variables) == 6


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("setm", r"train.freeze \('setm'\) matches no weight; the nearest are"),
        ("'stem/bias'", "matches stem/bias but not stem/kernel"),
        ("'.'", r"train.freeze \(.\) leaves no weight to train"),
    ],
)
def test_patterns_that_do_not_fit_the_model_are_refused(tmp_path, pattern, message):
    with pytest.raises(ConfigError, match=message):
        engine(tmp_path, *EVERYTHING, f"train.freeze=[{pattern}]")


@pytest.mark.slow
def test_rate_of_zero_keeps_some_weights_of_a_layer(tmp_path):
    run = engine(tmp_path, *EVERYTHING, "optimizer.groups={bias:{learning_rate:0x}}")
    model = model_of(run)
    before = {v.name: v.numpy() for v in model.trainable_variables}
    run.train(lambda: False)
    kept = [v.name for v in model.trainable_variables if np.array_equal(v, before[v.name])]
    assert kept == [name for name in before if "bias" in name]


@pytest.mark.parametrize(
    ("before", "after"),
    [(2.0**63, 2.0**64), (LossScale.LARGEST, LossScale.LARGEST), (2.0**127, 2.0**127)],
)
def test_loss_scale_grows_up_to_a_limit(before, after):
    scale = LossScale()
    scale.value.assign(before)
    scale.good_steps.assign(LossScale.GROWTH_STEPS - 1)
    scale.update(tf.constant(True))
    assert float(scale.value) == after
    scale.update(tf.constant(False))
    assert float(scale.value) == after / 2
