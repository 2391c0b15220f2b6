"""Calls the callbacks at the events of a run, and shows them the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.engine.graph.state.train_state import TrainState, digests
from trainer.engine.graph.step.metric_sums import unpack
from trainer.engine.process_group import ProcessGroup
from trainer.engine.reporter import Reporter
from trainer.errors import ConfigError
from trainer.protocols import CallbackDefaults, with_defaults

_LOOPS_OF = ("_distribution_strategy", "_distribute_strategy")
"""The attribute of a model that its `predict` takes the strategy from: of tf_keras, of Keras 3."""

_READ_ONLY = ("models/", "optimizers/", "averages/")
_RESERVED = {"step", "split", "epoch"}


class TrainingView:
    """What callbacks see of a run: a `trainer.protocols.Training`.

    Args:
        run_dir: the run directory.
        reporter: has the writers and the plan.
        state: what is trained.
        is_chief: whether this process writes the files of the run.
    """

    def __init__(
        self, run_dir: Path, reporter: Reporter, state: TrainState, *, is_chief: bool
    ) -> None:
        self._run_dir = run_dir
        self._reporter = reporter
        self._state = state
        self._is_chief = is_chief
        models = state.task.models.items()
        # Those of Keras 3 are wrapped.
        self._models = {name: getattr(model, "keras_model", model) for name, model in models}
        self._evaluation: Mapping[str, float] = {}
        self.advance(0)

    def advance(self, step: int, epoch_metrics: Mapping[str, float] | None = None) -> None:
        """Show the run after `step` steps.

        Args:
            step: number of steps made.
            epoch_metrics: the training metrics of the epoch that is complete; None: none is, and
                the state has their sums.
        """
        self._step = step
        self._metrics = epoch_metrics

    def set_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an evaluation."""
        self._evaluation = dict(metrics)

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self._run_dir

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""
        return self._is_chief

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""
        return self._reporter.plan.total_steps

    @property
    def total_epochs(self) -> int:
        """Number of epochs of the whole training, one that is not completed included."""
        plan = self._reporter.plan
        return plan.epochs.completed(plan.total_steps - 1) + 1

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps in an epoch."""
        return self._reporter.plan.epochs.length

    @property
    def step(self) -> int:
        """Number of steps made."""
        return self._step

    @property
    def epoch(self) -> int:
        """Number of complete epochs."""
        return self._reporter.plan.epochs.completed(self._step)

    @property
    def step_in_epoch(self) -> int:
        """Number of steps made of the epoch that the last step belongs to."""
        epochs = self._reporter.plan.epochs
        return self._step and self._step - epochs.end(epochs.completed(self._step - 1) - 1)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The training metrics: means over the epoch that the last step belongs to."""
        if self._metrics is None:
            sums = self._state.epoch_sums.numpy()
            self._metrics = unpack(self._state.task, sums) if sums.any() else {}
        return MappingProxyType(self._metrics)

    @property
    def evaluation(self) -> Mapping[str, float]:
        """The metrics of the last evaluation; empty: there was none."""
        return MappingProxyType(self._evaluation)

    @property
    def models(self) -> Mapping[str, Any]:
        """The models of the task by name, each as its function returned it."""
        return MappingProxyType(self._models)

    def write_scalars(self, values: Mapping[str, float]) -> None:
        """Write numbers to the summaries of the training split, at this step.

        Raises:
            ValueError: a name is one of the record's own.
        """
        if taken := sorted(_RESERVED & set(values)):
            raise ValueError(f"write_scalars: {taken[0]} is written anyway; choose another name")
        self._reporter.write_scalars(self._step, {x: float(y) for x, y in values.items()})

    def write_images(self, name: str, images: np.ndarray) -> None:
        """Write images, [N, H, W] or [N, H, W, C], uint8 or floats in [0, 1]; C is 1, 3 or 4.

        Raises:
            ValueError: they are of another shape, or of other values.
        """
        pixels = _pixels(np.asarray(images))
        for writer in self._reporter.writers:
            writer.images("train", self._step, name, pixels)

    def write_histogram(self, name: str, values: np.ndarray) -> None:
        """Write the distribution of values of any shape."""
        for writer in self._reporter.writers:
            writer.histogram("train", self._step, name, np.asarray(values))

    def write_texts(self, name: str, texts: Sequence[str]) -> None:
        """Write texts; a single one too."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        for writer in self._reporter.writers:
            writer.texts("train", self._step, name, texts)


def _pixels(images: np.ndarray) -> np.ndarray:
    """Return images as [N, H, W, C] uint8."""
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[-1] not in (1, 3, 4)):
        raise ValueError(
            f"write_images: the shape {list(images.shape)} must be [N, H, W] or [N, H, W, 1, 3 or "
            "4]; a single image is images[None]"
        )
    images = images[..., None] if images.ndim == 3 else images
    if images.dtype == np.uint8:
        return images
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if not (np.issubdtype(images.dtype, np.floating) and low >= 0.0 and high <= 1.0):
        raise ValueError(
            f"write_images: {images.dtype} from {low:g} to {high:g} must be uint8, or floats in "
            "[0, 1]; scale them, or clip them with np.clip(images, 0, 1)"
        )
    return np.rint(images * 255.0).astype(np.uint8)


class CallbackCaller:
    """Calls the methods of callbacks.

    Args:
        view: what they see.
        state: the callbacks, and what is trained.
        strategy: TensorFlow's strategy.
        process_group: the processes that run every step together.
        channel: sends lines to the user.
    """

    def __init__(
        self,
        view: TrainingView,
        state: TrainState,
        strategy: tf.distribute.Strategy,
        process_group: ProcessGroup,
        channel: Channel,
    ) -> None:
        self.view = view
        self._state = state
        self._strategy = strategy
        self._process_group = process_group
        self._channel = channel
        self._checked: set[tuple[str, str]] = set()
        self._callbacks = {
            name: with_defaults(callback, CallbackDefaults)
            for name, callback in state.callbacks.items()
        }

    def call(self, event: str, *args: Any) -> bool:
        """Call a method of the callbacks that have it.

        Args:
            event: its name.
            *args: what it is called with.

        Returns:
            Whether a callback, in any process, ends the training; collective.

        Raises:
            ConfigError: a callback changed what it may only read.
        """
        step = self.view.step
        due = {
            name: callback
            for name, callback in self._callbacks.items()
            if getattr(callback, event) is not None
            and (event != "on_step" or step % (callback.every or 1) == 0)
        }
        if not due:
            return False
        # In all processes, also in those that will wait for one that is called.
        self._channel.phase("evaluate", step)
        # All are called, also after one that ends it: each keeps its own count.
        ends = [
            self._is_called(event, callback) and bool(self._call(name, callback, event, args))
            for name, callback in due.items()
        ]
        if event in ("on_train_begin", "on_train_end"):
            return False
        ending = [
            name
            for name, count in zip(due, self._process_group.all_reduce_sum(*ends), strict=True)
            if count
        ]
        for name in ending:
            self._channel.line(f"{name} ends the training at step {step}.")
        return bool(ending)

    def _is_called(self, event: str, callback: CallbackDefaults) -> bool:
        """Return whether a callback is called in this process."""
        return (
            self._process_group.is_chief
            or event == "on_evaluate"
            or callback.everywhere
            # Its variables must be the same in every process.
            or callback.adjust_learning_rate is not None
        )

    def _call(
        self, name: str, callback: CallbackDefaults, event: str, args: tuple[Any, ...]
    ) -> Any:
        method: Callable[..., Any] = getattr(callback, event)
        with _alone(self.view.models.values()):
            # The first time only: it reads every weight. What it finds, one replica would do alone.
            if event == "on_evaluate" or (name, event) in self._checked:
                return method(*args)
            self._checked.add((name, event))
            before = self._digests()
            result = method(*args)
            after = self._digests()
        if changed := [key for key in before if before[key] != after[key]]:
            raise ConfigError(
                f"callbacks.{name}: {event} changes {changed[0].partition(':')[0]}, but a callback "
                "only reads what is trained; change the learning rate with adjust_learning_rate, "
                "and weights in the task's train_step"
            )
        return result

    def _digests(self) -> dict[str, int]:
        variables = self._state.variables().items()
        return digests(
            {name: value for name, value in variables if name.startswith(_READ_ONLY)},
            self._strategy,
        )


@contextmanager
def _alone(models: Iterable[Any]) -> Iterator[None]:
    """Have `predict` of Keras' models run in this process alone.

    It would run on all replicas, and gather from all processes: one that is alone would wait.
    """
    before = [
        (vars(model), name, vars(model)[name])
        for model in models
        for name in _LOOPS_OF
        if name in vars(model)
    ]
    for attributes, name, _ in before:
        attributes[name] = None
    try:
        yield
    finally:
        for attributes, name, strategy in before:
            attributes[name] = strategy
