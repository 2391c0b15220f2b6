"""eager=true: steps that a debugger can stop in, and the numbers of compiled ones."""

import pytest
import tensorflow as tf

from tests.support.training import ROUNDING, distance, engine, train, variables

WATCHED = (
    *(f"~model.{key}" for key in ("width", "dropout", "batch_norm", "synchronized", "l2")),
    "model._target_=tests.support.toy_models.watched",
)


@pytest.fixture(autouse=True)
def compiled_afterward():
    yield
    tf.config.run_functions_eagerly(False)


def seen(run):
    (layer,) = [layer for layer in run.state.task.models["model"].layers if hasattr(layer, "seen")]
    return layer.seen


def test_model_sees_numbers_in_every_step(tmp_path):
    compiled = engine(tmp_path / "compiled", *WATCHED, "train.steps=2")
    compiled.train(lambda: False)
    assert not any(seen(compiled))
    eager = engine(tmp_path / "eager", *WATCHED, "train.steps=2", "eager=true")
    eager.train(lambda: False)
    assert seen(eager).count(True) >= 2  # a call for each step, and those of the evaluation


@pytest.mark.slow
def test_numbers_are_those_of_compiled_steps(tmp_path):
    options = (
        "model._target_=tests.support.toy_models.smooth",
        "model.dropout=0.3",
        "batch.accumulate=2",
        "train.clip_norm=1",
        "train.steps=4",
    )
    initial = variables(engine(tmp_path / "initial", *options))
    compiled = train(tmp_path / "compiled", *options)
    eager = train(tmp_path / "eager", *options, "eager=true")
    assert distance(compiled, eager, initial) < ROUNDING
