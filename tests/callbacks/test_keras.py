"""Callbacks of Keras: called as `fit` calls them, or refused by name."""

from dataclasses import replace
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from tests.support.training import short_engine
from trainer.callbacks.keras import KerasCallback
from trainer.engine.callback_events import Training
from trainer.errors import ConfigError

calls = []


def note(method):
    """Return a function that records its arguments."""
    return lambda *args: calls.append((method, *args))


class Loop:
    """Has the learning rate of each step."""

    def learning_rates(self, step):
        return {"learning_rate": 0.5**step}


def training(model, **values):
    """Return a training of five steps, three in an epoch."""
    reporter = SimpleNamespace(loop=Loop())
    return replace(Training(None, True, {"model": model}, 5, 2, 2.5, reporter), **values)


class Refusing:
    """Like the optimizer of a task whose model has a step of its own."""

    def apply_gradients(self, pairs):
        raise ConfigError("a callback updates nothing")

    def __getattr__(self, name):
        if name == "updating":
            return SimpleNamespace(iterations=tf.Variable(7))
        raise ConfigError(f"{name} is not here")


def model():
    return SimpleNamespace(stop_training=True, optimizer=Refusing())


@pytest.mark.parametrize("library", [tf.keras, keras])
def test_methods_are_called_as_fit_calls_them(library):
    calls.clear()
    names = ["on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end", "on_test_end"]
    callback = library.callbacks.LambdaCallback(
        on_train_batch_end=note("batch"), **{name: note(name) for name in names}
    )
    adapter, own = KerasCallback(callback=callback, every=1), model()
    begin = training(own)
    adapter.on_train_begin(begin)
    assert callback.model is own
    assert callback.params == {"epochs": 2, "steps": 3, "verbose": 0}
    last = replace(begin, step=3, epoch=1, step_in_epoch=3, metrics={"loss": 2.0})
    assert not adapter.on_step(last)
    assert not adapter.on_evaluate(3, {"loss": 1.0})
    last = replace(last, evaluation={"loss": 1.0})
    assert not adapter.on_epoch_end(last)
    end = replace(last, step=5, epoch=2)
    assert not adapter.on_epoch_end(end)
    adapter.on_train_end(end)
    both = {"loss": 2.0, "val_loss": 1.0}
    assert calls == [
        ("on_train_begin", {}),
        ("on_epoch_begin", 0, {}),
        ("batch", 2, {"loss": 2.0}),
        ("on_test_end", {"loss": 1.0}),
        ("on_epoch_end", 0, both),
        ("on_epoch_begin", 1, {}),
        ("on_epoch_end", 1, {"loss": 2.0}),  # the evaluation was of an earlier step
        ("on_train_end", {"loss": 2.0}),
    ]


def test_stop_request_of_a_callback_is_honored():
    class Stopping(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    adapter, own = KerasCallback(callback=Stopping()), model()
    adapter.on_train_begin(training(own))
    assert not adapter.on_epoch_end(training(own, step=3, epoch=1))
    assert adapter.on_epoch_end(training(own, step=4, epoch=2))


def test_learning_rate_that_nothing_would_read_is_refused():
    class Setting(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.5

    own = model()
    adapter = KerasCallback(callback=Setting())
    adapter.on_train_begin(training(own))
    with pytest.raises(ConfigError, match=r"\(Setting\): on_epoch_end sets the learning rate 0\.5"):
        adapter.on_epoch_end(training(own, step=3, epoch=1))


@pytest.mark.parametrize("library", [tf.keras, keras])
def test_callback_reads_the_rate_of_the_last_step(library):
    seen = []

    class Reading(library.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            optimizer = self.model.optimizer
            rate = optimizer.learning_rate
            seen.append(
                (
                    float(rate),
                    float(library.backend.get_value(rate))
                    if library is tf.keras
                    else float(keras.ops.convert_to_numpy(rate)),
                    int(optimizer.iterations),
                )
            )

    for own, updates in ((SimpleNamespace(), 3), (model(), 7)):
        seen.clear()
        before = dict(vars(own))
        adapter = KerasCallback(callback=Reading())
        adapter.on_train_begin(training(own))
        adapter.on_epoch_end(training(own, step=3, epoch=1))
        assert seen == [(0.25, 0.25, updates)]
        assert vars(own).get("optimizer") is before.get("optimizer")


@pytest.mark.parametrize("library", [tf.keras, keras])
def test_file_of_a_continued_run_is_continued(tmp_path, library):
    for step in (0, 3):
        logger = library.callbacks.CSVLogger(str(tmp_path / "log.csv"))
        adapter = KerasCallback(callback=logger)
        adapter.on_train_begin(training(model(), step=step))
        last = training(model(), step=step + 3, epoch=step // 3 + 1, metrics={"loss": 2.0})
        adapter.on_epoch_end(last)
        adapter.on_train_end(last)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0].startswith("epoch,loss")
    assert [line[:5] for line in lines[1:]] == ["0,2.0", "1,2.0"]


class Derived(tf.keras.callbacks.EarlyStopping):
    """A subclass of what is refused."""


class Batches(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        pass


class Beginning(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        pass


REFUSED = {
    "changes": (Derived, None, r"callback \(Derived\) cannot change .*callbacks=early_stopping"),
    "saves": (
        lambda: keras.callbacks.ModelCheckpoint("x.keras"), None,
        r"callback \(ModelCheckpoint\) cannot change or save .* checkpoint\.best\.metric",
    ),
    "batches": (Batches, None, r"every \(null\): Batches has on_batch_end; add .*every=1"),
    "no_batches": (keras.callbacks.History, 3, r"every \(3\): History has no on_train_batch_end"),
    "never": (Beginning, None, r"callback \(Beginning\) has on_test_begin, which is never"),
    "other": (SimpleNamespace, None, r"callback \(SimpleNamespace\) is no callback of Keras"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_callback_that_does_more_than_read_is_refused(case):
    make, every, message = REFUSED[case]
    with pytest.raises(ConfigError, match=rf"^callbacks\.keras\.{message}") as no:
        KerasCallback(callback=make(), every=every)
    assert len(no.value.problems) == 1


def log(epoch, logs):
    calls.append((epoch, sorted(logs)))


def test_callback_is_chosen_by_the_configuration(tmp_path):
    calls.clear()
    chosen = [
        "callbacks=keras", "callbacks.keras.callback._target_=tf_keras.callbacks.LambdaCallback",
        f"+callbacks.keras.callback.on_epoch_end={{_target_: {__name__}.log, _partial_: true}}",
    ]  # fmt: skip
    run = short_engine(tmp_path, "model=softmax", "train.steps_per_epoch=4", *chosen)
    assert run.train(lambda: False)
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert calls == [(0, names), (1, names)]
