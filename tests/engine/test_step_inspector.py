"""The step inspector shows the next step, and changes nothing."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy_writers import Shown
from tests.support.training import RANDOM, ROUNDING, TWO, assert_same_bits, engine, variables

RATE = 0.05
SGD = ("optimizer=sgd", f"optimizer.learning_rate={RATE}", "optimizer.momentum=0")


def inspect(run_engine, step):
    """Return what is shown at a step, by its name."""
    writer = Shown()
    run_engine.step_inspector.show(step, [writer])
    return {name: values for (_, _, name), values in writer.shown.items()}


def advance(run_engine, count):
    """Run steps without the engine's events."""
    begin = int(run_engine.state.step.numpy())
    run_engine.loop.run(
        run_engine.loop.feed.open(begin, run_engine.state.divergence_monitor.left_out.numpy()),
        tf.constant(count, tf.int64),
    )


@pytest.mark.slow
def test_gradients_are_those_of_next_step(tmp_path):
    options = ("train.clip_norm=100", "summary.histograms=2")
    run_engine = engine(tmp_path, *TWO, *RANDOM, *SGD, *options)
    advance(run_engine, 2)
    state = variables(run_engine)
    histograms = inspect(run_engine, 2)
    assert_same_bits(state, variables(run_engine))  # moving statistics too
    before, gradients = (
        {name.removeprefix(kind): x for name, x in histograms.items() if name.startswith(kind)}
        for kind in ("weights/", "gradients/")
    )
    advance(run_engine, 1)
    trained = run_engine.state.task.models["model"].trainable_variables
    after = {variable.name[:-2]: variable.numpy() for variable in trained}
    assert before.keys() == gradients.keys() == after.keys()
    for name, gradient in gradients.items():
        moved = before[name] - np.float32(RATE) * gradient
        # Weights below 1, rounded once.
        np.testing.assert_allclose(after[name], moved, rtol=ROUNDING, atol=1e-7, err_msg=name)
    norm = np.sqrt(sum(np.sum(gradient.astype(np.float64) ** 2) for gradient in gradients.values()))
    assert run_engine.loop.report() == {"gradient_norm": pytest.approx(norm, rel=ROUNDING)}


def test_inspector_shows_what_is_due(tmp_path):
    run_engine = engine(tmp_path, "strategy=one_device", "summary.histograms=3", "summary.images=4")
    assert list(inspect(run_engine, 4)) == ["inputs"]
