"""Calls the callbacks at the events of a run, and shows them the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.graph.state.train_state import digests
from trainer.engine.graph.step.metric_sums import unpack
from trainer.engine.plan import EverySteps
from trainer.engine.process_group import ProcessGroup
from trainer.engine.reporter import Reporter
from trainer.errors import ConfigError
from trainer.protocols import CallbackDefaults, with_defaults

_STRATEGIES = ("_distribution_strategy", "_distribute_strategy")
"""The attribute of a model from which its `predict` takes the strategy: tf_keras', Keras 3's."""

_NUMBER_BYTES = 6  # in a number that is added up over replicas
_SHORT_BYTES = 60 * _NUMBER_BYTES

_READ_ONLY = ("models/", "optimizers/", "averages/")


@dataclass(frozen=True)
class Training:
    """A run as its callbacks see it at one event.

    Attributes:
        is_chief: whether this process writes the files of the run.
        models: the models of the task by name, each as its function returned it, of either Keras.
        total_epochs: number of its epochs, one that is not completed included.
        steps_per_epoch: not whole where steps straddle two passes over the data.
        step: number of steps made.
        epoch: number of epochs completed.
        step_in_epoch: number of steps made of the epoch that the last step belongs to.
        metrics: the training metrics by name, means over that epoch; empty before its first step.
        evaluation: the metrics of the last evaluation, as `on_evaluate` gets them; empty: none.
    """

    run_dir: Path
    is_chief: bool
    models: Mapping[str, Any]
    total_steps: int
    total_epochs: int
    steps_per_epoch: float
    _reporter: Reporter = field(repr=False)
    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Return the learning rate of each optimizer in a step, from 1, by its name in the log."""
        return self._reporter.loop.learning_rates(max(0, step - 1))

    def write_scalars(self, values: Mapping[str, float]) -> None:
        """Write numbers to the summaries of the training split.

        Raises:
            ValueError: a name is one of the record's own.
        """
        for name in ("step", "split", "epoch"):
            if name in values:
                raise ValueError(f"write_scalars: {name} is written anyway; choose another name")
        self._reporter.write_scalars("train", self.step, {x: float(y) for x, y in values.items()})

    def write_images(self, name: str, images: np.ndarray) -> None:
        """Write images to the summaries of the training split.

        Args:
            images: [N, H, W] or [N, H, W, C], with C of 1, 3 or 4; uint8, or floats in [0, 1].

        Raises:
            ValueError: they are others.
        """
        images = np.asarray(images)
        pixels = images[..., None] if images.ndim == 3 else images
        if pixels.dtype != np.uint8:
            pixels = np.rint(pixels * 255.0)
        is_image = pixels.ndim == 4 and pixels.shape[-1] in (1, 3, 4)
        if not is_image or not np.all((pixels >= 0) & (pixels <= 255)):
            raise ValueError(
                f"write_images: {images.dtype} {list(images.shape)} from {images.min():g} to "
                f"{images.max():g} must be [N, H, W] or [N, H, W, 1, 3 or 4], uint8 or floats in "
                "[0, 1]; scale them, or use np.clip(images, 0, 1)"
            )
        for writer in self._reporter.writers:
            writer.images("train", self.step, name, pixels.astype(np.uint8))

    def write_texts(self, name: str, texts: Sequence[str]) -> None:
        """Write texts."""
        for writer in self._reporter.writers:
            writer.texts("train", self.step, name, list(texts))


class CallbackCaller:
    """Calls the methods of the callbacks in a run's state."""

    def __init__(self, run_dir: Path, reporter: Reporter, process_group: ProcessGroup) -> None:
        self._state = state = reporter.loop.state
        self._strategy = reporter.loop.strategy
        self._process_group = process_group
        self._channel = reporter.channel
        self._epochs = reporter.plan.epochs
        self._read_only: set[tuple[str, str]] = set()  # the methods that were found so
        self._shared = b""  # the variables of callbacks, as all processes have them
        self._callbacks = {
            name: with_defaults(callback, CallbackDefaults)
            for name, callback in state.callbacks.items()
        }
        steps = {x.every for x in self._callbacks.values() if x.on_step is not None and x.every}
        self.on_step_when = [EverySteps(every) for every in sorted(steps)]
        total = reporter.plan.total_steps
        self._training = Training(
            run_dir,
            process_group.is_chief,
            # Those of Keras 3 are wrapped.
            {x: getattr(model, "keras_model", model) for x, model in state.task.models.items()},
            total,
            self._epochs.completed(total - 1) + 1,
            self._epochs.length,
            reporter,
        )

    def show_again(self, step: int, evaluations: Sequence[Mapping[str, float]]) -> None:
        """Have callbacks see a run that was restored at a step; collective.

        The chief's `evaluations` until then count: the others need not see its files.
        """
        if self._callbacks:
            text = json.dumps(evaluations[-1] if evaluations else {})
            text = self._process_group.broadcast_text_from_chief(text)
            self.show(step, None, json.loads(text))

    def show(
        self,
        step: int,
        epoch_metrics: Mapping[str, float] | None = None,
        evaluation: Mapping[str, float] | None = None,
    ) -> None:
        """Have callbacks see the run after a step.

        Args:
            epoch_metrics: the training metrics of the epoch that is complete; None: none is, and
                the state has their sums.
        """
        if not self._callbacks:
            return
        if epoch_metrics is None:
            sums = self._state.epoch_sums.numpy()
            epoch_metrics = unpack(self._state.task, sums) if sums.any() else {}
        began = self._epochs.end(self._epochs.completed(step - 1) - 1) if step else 0
        self._training = replace(
            self._training,
            step=step,
            epoch=self._epochs.completed(step),
            step_in_epoch=step - began,
            metrics=dict(epoch_metrics),
            evaluation=self._training.evaluation if evaluation is None else dict(evaluation),
        )

    def call(self, event: str) -> bool:
        """Call a method of the callbacks that have it; return whether any ends the training.

        The chief's variables are sent to the other processes, most of which do not call it: so all
        of them hold the same state, and any snapshot of it can be restored.

        Raises:
            ConfigError: a callback changed what it may only read.
        """
        step = self._training.step
        due = {
            name: callback
            for name, callback in self._callbacks.items()
            if getattr(callback, event) is not None
            and (event != "on_step" or step % (callback.every or 1) == 0)
        }
        if not due:
            return False
        # Also in processes that do not call it: they will wait for one that does.
        self._channel.phase("evaluate", step)
        # All are called, also after one that ends it: each keeps its own count.
        ends = [
            self._calls(event, callback) and bool(self._call(name, callback, event))
            for name, callback in due.items()
        ]
        if event == "on_train_end":  # nothing is saved after it
            return False
        counts = self._share(ends)
        if event == "on_train_begin":
            return False
        ending = [name for name, count in zip(due, counts, strict=True) if count]
        for name in ending:
            self._channel.line(f"{name} ends the training at step {step}.")
        return bool(ending)

    def _share(self, ends: Sequence[bool]) -> list[int]:
        """Share the chief's variables; return how many processes each callback ends the run in."""
        group = self._process_group
        variables = self._state.callback_variables()
        if group.count == 1 or not variables:
            return group.all_reduce_sum(*ends)
        local = [self._strategy.experimental_local_results(x)[0] for x in variables]
        values = [tf.io.serialize_tensor(x.read_value()).numpy() for x in local]
        content: bytes = tf.io.serialize_tensor(values).numpy()
        # What is short is sent along.
        own = content if group.is_chief else b""
        begins = range(0, _SHORT_BYTES, _NUMBER_BYTES)
        numbers = [int.from_bytes(own[x : x + _NUMBER_BYTES], "little") for x in begins]
        sums = group.all_reduce_sum(*numbers, len(own), content != self._shared, *ends)
        size, changed, *counts = sums[len(numbers) :]
        if changed:
            sent = b"".join(x.to_bytes(_NUMBER_BYTES, "little") for x in sums[: len(numbers)])
            if size > _SHORT_BYTES:
                sent = group.broadcast_bytes_from_chief(content).tobytes()
            self._shared = sent[:size]
            chiefs = tf.io.parse_tensor(self._shared, tf.string).numpy()
            for variable, value, chiefs_value in zip(variables, values, chiefs, strict=True):
                if value != chiefs_value:
                    variable.assign(tf.io.parse_tensor(chiefs_value, variable.dtype))
        return counts

    def _calls(self, event: str, callback: CallbackDefaults) -> bool:
        return (
            self._process_group.is_chief
            or event == "on_evaluate"
            or callback.everywhere
            # Its variables must be the same in every process.
            or callback.adjust_learning_rate is not None
        )

    def _call(self, name: str, callback: CallbackDefaults, event: str) -> Any:
        method: Callable[..., Any] = getattr(callback, event)
        with _alone(self._training.models.values()):
            if event == "on_evaluate":
                return method(self._training.step, self._training.evaluation)
            if (name, event) in self._read_only:
                return method(self._training)
            # At its first call alone, for this reads every weight. What the chief's replicas had
            # changed by themselves, this would only show at the next restart.
            before = self._digests()
            result = method(self._training)
            after = self._digests()
        if changed := [key for key in before if before[key] != after[key]]:
            raise ConfigError(
                f"callbacks.{name}: {event} changes {changed[0].partition(':')[0]}, but a callback "
                "only reads what is trained; change the learning rate with adjust_learning_rate, "
                "and weights in the task's train_step"
            )
        self._read_only.add((name, event))
        return result

    def _digests(self) -> dict[str, int]:
        variables = self._state.variables().items()
        read_only = {name: value for name, value in variables if name.startswith(_READ_ONLY)}
        return digests(read_only, self._strategy)


@contextmanager
def _alone(models: Iterable[Any]) -> Iterator[None]:
    """Have `predict` of Keras' models run in this process alone.

    It would run on all replicas, and gather from all processes: one that is alone would wait.
    """
    attributes = [vars(model) for model in models]
    before = [(own, name, own[name]) for own in attributes for name in _STRATEGIES if name in own]
    for own, name, _ in before:
        own[name] = None
    try:
        yield
    finally:
        for own, name, strategy in before:
            own[name] = strategy
