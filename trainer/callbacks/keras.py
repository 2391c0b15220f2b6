"""Runs a callback of Keras that only reads, such as one that writes samples or a file of its own.

Of either Keras: neither is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from trainer.annotations import Ge
from trainer.errors import ConfigError
from trainer.protocols import Training

_LIBRARIES = ("keras", "tf_keras")

_INSTEAD: Mapping[str, str] = {
    "BackupAndRestore": "every run is saved and continued; checkpoint.every_steps says when",
    "EarlyStopping": "add callbacks=early_stopping",
    "LearningRateScheduler": "choose a schedule, such as schedule=cosine",
    "ModelCheckpoint": "use checkpoint.every_epochs, checkpoint.keep and checkpoint.best.metric",
    "OrbaxCheckpoint": "use checkpoint.every_epochs, checkpoint.keep and checkpoint.best.metric",
    "ProgbarLogger": "the console shows the progress",
    "ReduceLROnPlateau": "add callbacks=reduce_on_plateau",
    "SwapEMAWeights": "add train.ema_decay=0.999",
    "TensorBoard": "add writers=[jsonl,tensorboard], and summary.histograms",
    "TerminateOnNaN": "divergence.action says what happens then",
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
    """Calls the methods of a callback of Keras as `fit` does.

    On the chief alone. `on_train_begin` and `on_epoch_begin` are called in each attempt of a run:
    an object that continues it is a new one. Its `model` is the first of the task's. Training ends
    after the event in which `model.stop_training` is set.

    Args:
        callback: the callback of Keras.
        every: number of steps from one `on_train_batch_end` to the next; 1: each, as `fit` calls
            it. Each call ends a graph call. None: the callback has no such method.
    """

    def __init__(self, *, callback: Any, every: Annotated[int, Ge(1)] | None = None) -> None:
        base = _base_of(callback)
        self._check(callback, base)
        hooks = [name for name in _BATCH_END if _overrides(callback, base, name)]
        if hooks and every is None:
            raise ConfigError(
                f"callbacks.keras.every (null): {type(callback).__name__} has {hooks[0]}; add "
                "callbacks.keras.every=1 to call it after each step, which costs time in small "
                "steps, or a larger number"
            )
        if every is not None and not hooks:
            raise ConfigError(
                f"callbacks.keras.every ({every}): {type(callback).__name__} has no "
                f"{_BATCH_END[0]}; remove it"
            )
        if hooks:
            self.on_step = self._on_batch_end
        self.every = every
        self._callback = callback
        self._training: Training | None = None  # stays None in other processes than the chief
        self._evaluated: Mapping[str, float] = {}

    def on_train_begin(self, training: Training) -> None:
        """Give the callback its model; begin the training, and an epoch."""
        self._training = training
        model = next(iter(training.models.values()))
        rate = _learning_rate(model)
        model.stop_training = False
        if training.step and type(self._callback).__name__ == "CSVLogger":
            self._callback.append = True  # it would begin its file anew
        params = {"epochs": training.total_epochs, "steps": math.ceil(training.steps_per_epoch)}
        self._callback.set_params({**params, "verbose": 0})
        self._callback.set_model(model)
        self._callback.on_train_begin({})
        if training.step < training.total_steps:
            self._callback.on_epoch_begin(training.epoch, {})
        self._stops(rate)

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        """End an evaluation; return whether training should stop."""
        if self._training is None:
            return False
        rate = _learning_rate(self._callback.model)
        self._evaluated = {f"val_{name}": value for name, value in metrics.items()}
        self._callback.on_test_end(dict(metrics))
        return self._stops(rate)

    def on_epoch_end(self, training: Training) -> bool:
        """End an epoch, and begin the next; return whether training should stop."""
        rate = _learning_rate(self._callback.model)
        # Its logs have the evaluation of this step, if there was one.
        logs = {**training.metrics, **self._evaluated}
        self._evaluated = {}
        self._callback.on_epoch_end(training.epoch - 1, logs)
        stops = self._stops(rate)
        if training.step < training.total_steps and not stops:
            self._callback.on_epoch_begin(training.epoch, {})
        return stops or self._stops(rate)

    def on_train_end(self, training: Training) -> None:
        """End the training."""
        self._callback.on_train_end(dict(training.metrics))

    def _on_batch_end(self, training: Training) -> bool:
        """End a step; return whether training should stop."""
        rate = _learning_rate(self._callback.model)
        self._callback.on_train_batch_end(training.step_in_epoch - 1, dict(training.metrics))
        return self._stops(rate)

    def _stops(self, rate: float | None) -> bool:
        """Return whether the callback stops the training; refuse another learning rate.

        Args:
            rate: that of the model's compiled optimizer before the callback was called.
        """
        model = self._callback.model
        if (new := _learning_rate(model)) != rate:
            raise ConfigError(
                f"callbacks.keras.callback ({type(self._callback).__name__}) sets the learning "
                f"rate {new} of the model's optimizer, and the run has its own; choose a "
                "schedule, or write a callback with adjust_learning_rate"
            )
        return bool(model.stop_training)

    @staticmethod
    def _check(callback: Any, base: type | None) -> None:
        name = f"callbacks.keras.callback ({type(callback).__name__})"
        if base is None:
            raise ConfigError(
                f"{name} is no callback of Keras; one that has on_train_begin(training) or the "
                "like is named by itself, callbacks.<name>._target_"
            )
        for kind in type(callback).__mro__:
            if kind.__name__ in _INSTEAD and _is_of_keras(kind):
                raise ConfigError(
                    f"{name} changes the training or saves it, which fit's callbacks cannot do "
                    f"here; {_INSTEAD[kind.__name__]}"
                )
        for method in _NEVER:
            if _overrides(callback, base, method):
                raise ConfigError(
                    f"{name} has {method}, which is never called here: steps are run many at a "
                    "time; use on_train_batch_end, on_epoch_begin or on_test_end"
                )


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES


def _base_of(callback: Any) -> type | None:
    """Return Keras' class `Callback` that a callback is derived from; None: from none."""
    kinds = type(callback).__mro__
    return next(
        (kind for kind in kinds if kind.__name__ == "Callback" and _is_of_keras(kind)), None
    )


def _overrides(callback: Any, base: type | None, method: str) -> bool:
    return method in vars(callback) or getattr(type(callback), method) is not getattr(base, method)


def _learning_rate(model: Any) -> float | None:
    """Return the learning rate of a compiled model's optimizer; None: it has none of its own."""
    rate: Any = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    try:
        return float(rate)
    except (TypeError, ValueError):  # None, or a schedule
        return None
