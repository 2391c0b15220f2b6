"""The protocol of callbacks: what the engine calls of one, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf

EVENTS: Mapping[str, tuple[str, ...]] = {
    "on_train_begin": ("training",),
    "on_step": ("training",),
    "on_evaluate": ("step", "metrics"),
    "on_epoch_end": ("training",),
    "on_train_end": ("training",),
}
"""The events with what a method is called with; those of one step happen in this order."""

Event: TypeAlias = Callable[[Any], bool | None]
"""Called with a `trainer.engine.callback_events.Training`."""


class CallbackDefaults:
    """What a callback may have; it needs one of the methods, and no base class.

    Its state belongs in `tf.Variable` attributes: they are in every checkpoint. An attribute
    `directions` is set to which direction of each metric is better (`trainer.config.directions`).
    `on_step`, `on_evaluate` and `on_epoch_end` end the training where one returns True, in any
    process.

    Attributes:
        every: number of steps from one `on_step` to the next, which needs it.
        everywhere: whether every process calls its methods. Otherwise the chief alone does, but for
            `on_evaluate`, and all methods of a callback with `adjust_learning_rate`.
        on_train_begin: called before the first step of each attempt.
        on_step: called after each multiple of `every` steps.
        on_evaluate: called after each evaluation, in every process, with the number of steps made,
            and the metrics of the validation split by name; without one those of the test split.
        on_epoch_end: called after each step that completes an epoch.
        on_train_end: called when the training is finished, not when it is stopped.
        adjust_learning_rate: receives the schedule's learning rate of a step, float32 scalar, and
            returns the one that is used. It is traced into the step, in every replica, and must
            depend on nothing but the rate and the callback's variables.
    """

    every: int | None = None
    everywhere: bool = False
    on_train_begin: Event | None = None
    on_step: Event | None = None
    on_evaluate: Callable[[int, Mapping[str, float]], bool | None] | None = None
    on_epoch_end: Event | None = None
    on_train_end: Event | None = None
    adjust_learning_rate: Callable[[tf.Tensor], tf.Tensor] | None = None
