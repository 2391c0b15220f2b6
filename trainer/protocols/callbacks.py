"""The protocols of callbacks: what the engine calls of one, and what it sees of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


class Training(Protocol):
    """A run as its callbacks see it: one object for all events, to read and to write summaries."""

    @property
    def run_dir(self) -> Path:
        """The run directory."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""

    @property
    def total_epochs(self) -> int:
        """Number of epochs of the whole training, one that is not completed included."""

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps in an epoch; not whole where steps straddle two passes over the data."""

    @property
    def step(self) -> int:
        """Number of steps made."""

    @property
    def epoch(self) -> int:
        """Number of complete epochs."""

    @property
    def step_in_epoch(self) -> int:
        """Number of steps made of the epoch that the last step belongs to."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The training metrics by name: means over the epoch that the last step belongs to."""

    @property
    def evaluation(self) -> Mapping[str, float]:
        """The metrics of the last evaluation by name, as `on_evaluate` gets them; empty: none."""

    @property
    def models(self) -> Mapping[str, Any]:
        """The models of the task by name, each as its function returned it, of either Keras."""

    def write_scalars(self, values: Mapping[str, float]) -> None:
        """Write numbers to the summaries of the training split, at this step."""

    def write_images(self, name: str, images: np.ndarray) -> None:
        """Write images, [N, H, W] or [N, H, W, C], uint8 or floats in [0, 1]; C is 1, 3 or 4."""

    def write_histogram(self, name: str, values: np.ndarray) -> None:
        """Write the distribution of values of any shape."""

    def write_texts(self, name: str, texts: Sequence[str]) -> None:
        """Write texts."""


EVENTS: Mapping[str, tuple[str, ...]] = {
    "on_train_begin": ("training",),
    "on_step": ("training",),
    "on_evaluate": ("step", "metrics"),
    "on_epoch_end": ("training",),
    "on_train_end": ("training",),
}
"""The events and what their methods are called with; those of one step in this order."""


class CallbackDefaults:
    """What a callback may have; it needs one of the methods, and no base class.

    The state of a callback belongs in `tf.Variable` attributes: they are in every checkpoint. An
    attribute `directions` is set to which direction of each metric is better
    (`trainer.config.directions`).

    Attributes:
        every: number of steps from one `on_step` to the next, which needs it.
        everywhere: whether every process calls all its methods. Otherwise the chief alone does,
            but for `on_evaluate`; a callback with `adjust_learning_rate` is called everywhere.
        on_train_begin: called with `Training` before the first step of each attempt.
        on_step: called with `Training` at each multiple of `every`. Training ends if it returns
            True, in any process.
        on_evaluate: called with the step and the metrics by name of the validation split, without
            one of the test split, after each evaluation, in every process. Training ends if it
            returns True, in any process.
        on_epoch_end: called with `Training` at each step that completes an epoch. Training ends if
            it returns True, in any process.
        on_train_end: called with `Training` when training is finished, not when it is stopped.
        adjust_learning_rate: receives the schedule's learning rate of a step, float32 scalar, and
            returns the one that is used. It is traced into the step, in every replica, and must
            depend on nothing but the rate and the callback's variables.
    """

    every: int | None = None
    everywhere: bool = False
    on_train_begin: Callable[[Training], None] | None = None
    on_step: Callable[[Training], bool | None] | None = None
    on_evaluate: Callable[[int, Mapping[str, float]], bool | None] | None = None
    on_epoch_end: Callable[[Training], bool | None] | None = None
    on_train_end: Callable[[Training], None] | None = None
    adjust_learning_rate: Callable[[tf.Tensor], tf.Tensor] | None = None
