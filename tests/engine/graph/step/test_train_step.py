"""One step: precision, loss scale, XLA, averages."""

import numpy as np
import pytest

from tests.support.training import (
    LOW_PRECISION_ROUNDING,
    ROUNDING,
    TWO,
    distance,
    engine,
    train,
    variables,
    weights,
)

PLAIN = ("optimizer=sgd", "optimizer.learning_rate=0.05")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        (["jit=true"], ROUNDING),
        (["jit=true", *TWO], ROUNDING),
        (["precision=mixed_bfloat16"], LOW_PRECISION_ROUNDING),
    ],
    ids=["jit", "jit on two replicas", "bfloat16"],
)
def test_other_kernels_and_types_make_the_same_update(tmp_path, options, tolerance):
    initial = variables(engine(tmp_path / "initial", *PLAIN))
    plain = train(tmp_path / "plain", *PLAIN)
    other = train(tmp_path / "other", *PLAIN, *options)
    assert distance(plain, other, initial) <= tolerance


@pytest.mark.slow
def test_overflow_drops_update_and_halves_loss_scale(tmp_path):
    training = engine(tmp_path, *PLAIN, *TWO, "precision=mixed_float16", "train.steps=1")
    training.state.loss_scale.value.assign(3e38)
    training.state.gradient_norm.assign(7.0)
    before = variables(training)
    training.train(lambda: False)
    after = variables(training)
    np.testing.assert_array_equal(weights(before), weights(after))
    assert int(training.state.task.optimizers["model"].iterations.numpy()) == 0
    assert after["/loss_scale/value"] == pytest.approx(1.5e38)
    assert training.loop.report() == {"gradient_norm": 7.0}  # of the last update
    assert training.step == 1


def test_averages_follow_their_recurrence_and_are_evaluated(tmp_path):
    options = ("train.ema_decay=0.5", "train.steps=3", "train.steps_per_loop=1")
    training = engine(tmp_path, *PLAIN, *TWO, *options)
    kernel = training.state.task.models["model"].trainable_variables[0]
    history = [kernel.numpy()]

    def stop():
        # Not within the evaluation at the end, when weights and averages are exchanged.
        if len(history) <= training.step < 3:
            history.append(kernel.numpy())
        return False

    training.train(stop)
    history.append(kernel.numpy())
    average = history[0]
    for step, weight in enumerate(history[1:4]):
        decay = min(0.5, (1 + step) / (10 + step))
        average = average + (1 - decay) * (weight - average)
    averaged = training.state.averages["model"][0].numpy()
    # Weights below 1, and three updates of three roundings, each to 2**-25 at most.
    np.testing.assert_allclose(averaged, average, atol=9 * 2.0**-25)
    evaluated = training.evaluator.evaluate(lambda: False).metrics
    np.testing.assert_array_equal(kernel.numpy(), history[3])
    training.state.swap_averages()
    np.testing.assert_array_equal(kernel.numpy(), averaged)
    training.state.averages.clear()
    assert training.evaluator.evaluate(lambda: False).metrics == evaluated
