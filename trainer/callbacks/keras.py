"""Runs a callback of Keras that only reads, such as one that writes samples or its own file.

Of either Keras: neither is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from trainer.annotations import Ge
from trainer.engine.callback_events import Training
from trainer.errors import ConfigError

_LIBRARIES = ("keras", "tf_keras")

_INSTEAD: Mapping[str, str] = {
    "BackupAndRestore": "every run saves and resumes; checkpoint.every_steps sets when",
    "EarlyStopping": "add callbacks=early_stopping",
    "LearningRateScheduler": "choose a schedule, such as schedule=cosine",
    "ModelCheckpoint": "use checkpoint.every_epochs, checkpoint.keep and checkpoint.best.metric",
    "OrbaxCheckpoint": "use checkpoint.every_epochs, checkpoint.keep and checkpoint.best.metric",
    "ProgbarLogger": "the console shows the progress",
    "ReduceLROnPlateau": "add callbacks=reduce_on_plateau",
    "SwapEMAWeights": "add train.ema_decay=0.999",
    "TensorBoard": "add writers=[jsonl,tensorboard], and summary.histograms",
    "TerminateOnNaN": "divergence.action decides what happens then",
    "UpdateEmbeddingCallback": "a vocabulary cannot change in a run",
}
"""Callbacks of Keras that change the training or save it -> what does the same here."""

_BATCH_END = ("on_train_batch_end", "on_batch_end")
_NEVER = (
    "on_train_batch_begin", "on_batch_begin", "on_test_begin", "on_test_batch_begin",
    "on_test_batch_end",
)  # fmt: skip
"""Methods that `fit` would call and that nothing here can."""


class KerasCallback:
    """Calls the methods of a callback of Keras as `fit` does, on the chief alone.

    `on_train_begin` and `on_epoch_begin` are called in each attempt of a run: the object that goes
    on is a new one. `model` is the first of the task's; its optimizers show the learning rate of
    the last step, and the number of updates. Training ends after the event in which
    `model.stop_training` is set.

    Args:
        every: number of steps from one `on_train_batch_end` to the next; 1: each, as `fit` calls
            it. Each call ends a graph call. None: the callback has no such method.
    """

    def __init__(self, *, callback: Any, every: Annotated[int, Ge(1)] | None = None) -> None:
        _check(callback, every)
        if every is not None:
            self.on_step = self._on_batch_end
        self.every = every
        self._callback = callback
        self._model: Any = None  # stays None in other processes than the chief
        self._shown: dict[str, _ShownOptimizer] = {}
        self._training: Training | None = None
        self._evaluated_step = -1

    def on_train_begin(self, training: Training) -> None:
        """Give the callback its model; begin the training, and an epoch."""
        callback = self._callback
        self._model = next(iter(training.models.values()))
        self._model.stop_training = False
        self._training = training
        self._shown = {"optimizer": _ShownOptimizer(None)} | {
            name: _ShownOptimizer(value)
            for name, value in vars(self._model).items()
            if hasattr(type(value), "apply_gradients")
        }
        if training.step and type(callback).__name__ == "CSVLogger":
            callback.append = True  # it would begin its file again
        params = {"epochs": training.total_epochs, "steps": math.ceil(training.steps_per_epoch)}
        callback.set_params({**params, "verbose": 0})
        callback.set_model(self._model)
        self._call(training.step, "on_train_begin", {})
        if training.step < training.total_steps:
            self._call(training.step, "on_epoch_begin", training.epoch, {})

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        if self._model is None:
            return False
        self._evaluated_step = step
        return self._call(step, "on_test_end", dict(metrics))

    def on_epoch_end(self, training: Training) -> bool:
        """End an epoch, and begin the next; return whether training should stop."""
        step = training.step
        stops = self._call(step, "on_epoch_end", training.epoch - 1, self._logs(training))
        if stops or step >= training.total_steps:
            return stops
        return self._call(step, "on_epoch_begin", training.epoch, {})

    def on_train_end(self, training: Training) -> None:
        self._call(training.step, "on_train_end", self._logs(training))

    def _on_batch_end(self, training: Training) -> bool:
        """End a step; return whether training should stop."""
        number = training.step_in_epoch - 1
        return self._call(training.step, "on_train_batch_end", number, dict(training.metrics))

    def _logs(self, training: Training) -> dict[str, float]:
        """Return the metrics of an epoch, and of an evaluation after the same step."""
        evaluation = training.evaluation if self._evaluated_step == training.step else {}
        return {**training.metrics, **{f"val_{name}": x for name, x in evaluation.items()}}

    def _call(self, step: int, method: str, *args: Any) -> bool:
        """Call a method after a step; return whether training should stop."""
        assert self._training is not None
        rates = self._training.learning_rates(step)
        first = next(iter(rates.values()), 0.0)
        own = {name: rates.get(f"learning_rate/{name}", first) for name in self._shown}
        for name, optimizer in self._shown.items():
            optimizer.show(step, own[name])
        attributes = vars(self._model)
        before = {name: attributes[name] for name in self._shown if name in attributes}
        attributes |= self._shown
        getattr(self._callback, method)(*args)
        for name, optimizer in self._shown.items():
            del attributes[name]
            for new in (float(optimizer.learning_rate), float(optimizer.lr)):
                if new != own[name]:
                    raise ConfigError(
                        f"callbacks.keras.callback ({type(self._callback).__name__}): {method} "
                        f"sets the learning rate {new:g} of the model's {name}, and the run has "
                        "its own; choose a schedule, or write a callback with adjust_learning_rate"
                    )
        attributes |= before  # they trace the next steps
        return bool(self._model.stop_training)


def _check(callback: Any, every: int | None) -> None:
    """Refuse a callback that changes the training, or of which a method would not be called."""
    kinds = [x for x in type(callback).__mro__ if x.__module__.partition(".")[0] in _LIBRARIES]
    base = next((kind for kind in kinds if kind.__name__ == "Callback"), None)
    name = f"callbacks.keras.callback ({type(callback).__name__})"
    if base is None:
        raise ConfigError(
            f"{name} is no callback of Keras; one that has on_train_begin(training) or the like is "
            "named by itself, callbacks.<name>._target_"
        )
    for kind in kinds:
        if kind.__name__ in _INSTEAD:
            raise ConfigError(
                f"{name} cannot change or save the training here; {_INSTEAD[kind.__name__]}"
            )

    def overrides(method: str) -> bool:
        own = getattr(type(callback), method, None)
        return method in vars(callback) or own is not getattr(base, method, None)

    if never := next(filter(overrides, _NEVER), None):
        raise ConfigError(
            f"{name} has {never}, which is never called here: steps are run many at a time; use "
            "on_train_batch_end, on_epoch_begin or on_test_end"
        )
    hook = next(filter(overrides, _BATCH_END), None)
    if hook is not None and every is None:
        raise ConfigError(
            f"callbacks.keras.every (null): {type(callback).__name__} has {hook}; add "
            "callbacks.keras.every=1 to call it after each step, about a millisecond each time, or "
            "a larger number"
        )
    if hook is None and every is not None:
        raise ConfigError(
            f"callbacks.keras.every ({every}): {type(callback).__name__} has no {_BATCH_END[0]}; "
            "remove it"
        )


class _ShownOptimizer:
    """An optimizer of a model as a callback sees it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.learning_rate = self.lr = tf.Variable(0.0, trainable=False)
        self.iterations: Any = 0

    def show(self, step: int, rate: float) -> None:
        """Show the state after a step."""
        self.learning_rate.assign(np.float32(rate))
        # Of a model with its own step, which may update several times.
        updating = getattr(self._optimizer, "updating", None)
        self.iterations = np.int64(step) if updating is None else updating.iterations.numpy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._optimizer, name)
