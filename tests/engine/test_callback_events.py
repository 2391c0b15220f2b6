"""Callbacks: which events they are called at, in which process, and what they see."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.marks import first_only
from tests.support.processes import log
from tests.support.toy_writers import Shown
from tests.support.training import assert_same_bits, finish, short_engine
from trainer.engine.callback_events import CallbackCaller, Training
from trainer.engine.plan import Epochs
from trainer.errors import ConfigError

PLAN = (
    "model=softmax", "train.steps_per_epoch=3", "evaluate.every_steps=4",
    "evaluate.every_epochs=null", "checkpoint.every_steps=3",
)  # fmt: skip
EVENTS = [
    ("begin", 0, 0, 0, False),
    ("step", 2, 0, 2, False),
    ("epoch", 3, 1, 3, False),
    ("step", 4, 1, 1, True),
    ("evaluate", 4),
    ("step", 6, 2, 3, True),
    ("epoch", 6, 2, 3, True),
    ("step", 8, 2, 2, True),
    ("evaluate", 8),
    ("end", 8, 2, 2, True),
]

events = []


class Recorder:
    """Records its calls; the number of its steps is part of its state."""

    every = 2

    def __init__(self):
        self.steps = tf.Variable(0, trainable=False)

    def note(self, event, training):
        numbers = training.step, training.epoch, training.step_in_epoch
        events.append((event, *numbers, bool(training.evaluation)))
        if event != "begin":
            assert set(training.metrics) == {"loss", "accuracy"}

    def on_train_begin(self, training):
        self.note("begin", training)
        assert (training.total_steps, training.total_epochs, training.steps_per_epoch) == (8, 3, 3)

    def on_step(self, training):
        self.note("step", training)
        self.steps.assign_add(1)

    def on_evaluate(self, step, metrics):
        events.append(("evaluate", step))
        assert set(metrics) == {"loss", "accuracy"}

    def on_epoch_end(self, training):
        self.note("epoch", training)
        training.write_scalars({"steps": float(self.steps)})

    def on_train_end(self, training):
        self.note("end", training)


RECORDER = f"+callbacks.recorder={{_target_: {__name__}.Recorder}}"


def train(run_dir, *overrides, **options):
    return finish(short_engine(run_dir, *overrides), **options)


def scalars(run_dir):
    return [(line["step"], line["steps"]) for line in log(run_dir) if "steps" in line]


@pytest.mark.slow
def test_events_happen_once_also_in_a_run_that_was_stopped(tmp_path):
    events.clear()
    whole = train(tmp_path / "whole", *PLAN, RECORDER)
    assert events == EVENTS
    assert whole["/callbacks/recorder/steps"] == 4
    assert scalars(tmp_path / "whole") == [(3, 1), (6, 3)]
    events.clear()
    # Within the evaluation of step 4, of which nothing counts then; and after step 6.
    for step in (4, 6):
        train(tmp_path / "stopped", *PLAN, RECORDER, stop=lambda run, at=step: run.step >= at)
    end = train(tmp_path / "stopped", *PLAN, RECORDER)
    begins = [event for event in events if event[0] == "begin"]
    assert begins == [EVENTS[0], ("begin", 4, 1, 1, False), ("begin", 6, 2, 3, True)]
    assert [event for event in events if event[0] != "begin"] == EVENTS[1:]
    assert_same_bits(whole, end)
    assert scalars(tmp_path / "stopped") == [(3, 1), (6, 3)]


class Ending:
    """Ends the training at its first call."""

    every = 5

    def on_step(self, training):
        return True


def test_callback_ends_the_training_at_a_step(tmp_path):
    events.clear()
    run = short_engine(
        tmp_path, *PLAN, f"+callbacks.ending={{_target_: {__name__}.Ending}}", RECORDER
    )
    assert run.train(lambda: False)
    assert run.step == 5
    assert events[-1][:2] == ("end", 5)


@pytest.mark.slow
def test_early_stopping_counts_evaluations_over_attempts(tmp_path):
    options = (
        "model=softmax", "callbacks=early_stopping", "callbacks.early_stopping.patience=2",
        "callbacks.early_stopping.min_delta=2", "evaluate.every_steps=1",
    )  # fmt: skip
    first = short_engine(tmp_path, *options, "train.steps_per_loop=1")
    first.train(lambda: first.step >= 2)
    second = short_engine(tmp_path, *options)
    assert second.train(lambda: False)
    # The first evaluation is the best so far; two more without improvement are allowed.
    assert second.step == second.result()["step"] == 3


class Changing:
    """Changes a weight that it may only read."""

    def on_epoch_end(self, training):
        training.models["model"].trainable_variables[0].assign_add(tf.ones([64, 10]))


def test_callback_may_not_change_weights(tmp_path):
    run = short_engine(tmp_path, *PLAN, RECORDER.replace("Recorder", "Changing"))
    with pytest.raises(ConfigError, match=r"^callbacks\.recorder: on_epoch_end changes models/mod"):
        run.train(lambda: False)


class Predicting:
    """Calls the model in two ways."""

    every = 2

    def on_step(self, training):
        images = np.linspace(0, 1, 3 * 64, dtype="float32").reshape([3, 8, 8, 1])
        (model,) = training.models.values()
        assert model.distribute_strategy.num_replicas_in_sync == 1
        predicted = model.predict(images, verbose=0)
        np.testing.assert_allclose(model(images, training=False), predicted, atol=1e-6)
        events.append(predicted.shape)


LAYOUTS = ("mirrored", "central_storage")
MODELS = {
    "tf_keras": ["model=cnn", "model.width=4", "model.batch_norm=true", "model.dropout=0.3"],
    "keras_3": ["model._target_=tests.support.keras3_models.conv_net"],
}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", first_only(LAYOUTS))
def test_callback_may_call_the_model_and_its_predict(tmp_path, layout, model):
    overrides = [
        RECORDER.replace("Recorder", "Predicting"),
        "train.steps=2",
        "strategy.virtual_devices=2",
    ]
    events.clear()
    train(tmp_path, *overrides, *MODELS[model], f"strategy={layout}")
    assert events == [(3, 10)]


def caller(callbacks, sums, *, is_chief):
    """Return what calls callbacks in a process, at step 4."""
    group = SimpleNamespace(
        count=1, is_chief=is_chief, all_reduce_sum=lambda *flags: sums or list(flags)
    )
    plan = SimpleNamespace(total_steps=8, epochs=Epochs(16, 4))
    task = SimpleNamespace(models={})
    state = SimpleNamespace(callbacks=callbacks, callback_variables=list, task=task)
    state.epoch_sums, state.variables = tf.zeros([2]), dict
    channel = SimpleNamespace(phase=lambda *phase: None, line=events.append)
    loop = SimpleNamespace(state=state, strategy=None)
    made = CallbackCaller(None, SimpleNamespace(plan=plan, loop=loop, channel=channel), group)
    made.show(4)
    return made


def test_other_processes_call_only_the_callbacks_that_need_it():
    def method(*args):
        events.append(args)

    callbacks = {
        "chief": SimpleNamespace(on_epoch_end=method),
        "everywhere": SimpleNamespace(on_epoch_end=method, everywhere=True),
        "rate": SimpleNamespace(on_epoch_end=method, adjust_learning_rate=lambda rate: rate),
        "decides": SimpleNamespace(on_evaluate=method),
    }
    for is_chief, count in ((True, 3), (False, 2)):
        events.clear()
        made = caller(callbacks, None, is_chief=is_chief)
        assert not made.call("on_epoch_end")
        assert len(events) == count
        assert not made.call("on_evaluate")
        assert events[count:] == [(4, {})]
    events.clear()
    assert caller(callbacks, [1, 0, 0], is_chief=False).call("on_epoch_end")
    assert events[-1] == "chief ends the training at step 4."


def test_summaries_of_a_callback_are_checked():
    writer = Shown()
    training = Training(None, True, {}, 8, 2, 4.0, SimpleNamespace(writers=[writer]), step=3)
    training.write_texts("texts", ("a", "b"))
    training.write_images("gray", np.array([[[0.0, 0.5, 1.0]]]))
    training.write_images("colors", np.full([2, 1, 1, 3], 7, np.uint8))
    texts, gray, colors = (writer.shown["train", 3, name] for name in ("texts", "gray", "colors"))
    assert texts == ["a", "b"]
    assert gray.tolist() == [[[[0], [128], [255]]]]
    assert colors.dtype == np.uint8
    for wrong in (np.zeros([8, 8]), np.full([1, 2, 2], 1.5), np.full([1, 2, 2], np.nan)):
        with pytest.raises(ValueError, match=r"^write_images: float64 \[.*scale them, or use np"):
            training.write_images("samples", wrong)
    with pytest.raises(ValueError, match=r"^write_scalars: epoch is written anyway"):
        training.write_scalars({"epoch": 1})
