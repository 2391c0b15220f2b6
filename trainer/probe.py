"""A look at the step that comes next: its images after augmentation, weights and gradients as histograms.

The samples of a step and all that is random in it follow from its number, so the same batch, augmentation and dropout masks can be
had once more. The probe moves no variable: training goes on with the same bits as without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.collectives import CollectiveLog
from trainer.errors import ConfigError
from trainer.loop import TrainLoop
from trainer.policies import Plan
from trainer.protocols import Batch, Metrics
from trainer.step import LossFn, Optimizer, Step, StepOptions
from trainer.writers.base import Writer

MAX_IMAGES = 16
"""Images that are shown at a time."""


class Probe:
    """Looks at the next step when it is due. All processes must, for gradients are added up over all replicas.

    Args:
        loop: the training loop.
        options: what every step has in common.
        plan: when histograms and images are due.
        input_shape: shape of one example's features.

    Raises:
        ConfigError: images are wanted of features that are none.
    """

    def __init__(self, loop: TrainLoop, options: StepOptions, plan: Plan, input_shape: Sequence[int]) -> None:
        self._loop, self._state, self._options, self._plan = loop, loop.state, options, plan
        if plan.images is not None and not (len(input_shape) == 2 or (len(input_shape) == 3 and input_shape[-1] in (1, 3, 4))):
            raise ConfigError(
                f"summary.images ({plan.images.every_steps}) needs features that are images, [height, width] or "
                f"[height, width, 1, 3 or 4]; those of this dataset are {list(input_shape)}; add summary.images=null"
            )

    def due(self, step: int) -> bool:
        """Says whether there is anything to look at after `step` updates."""
        return any(interval is not None and interval.due(step) for interval in (self._plan.histograms, self._plan.images))

    def show(self, step: int, writers: Sequence[Writer]) -> None:
        """Shows what is due after `step` updates."""
        number = tf.constant(step, tf.int64)
        if self._plan.images is not None and self._plan.images.due(step):
            images = as_images(self._images(self._opened(step), number).numpy())
            for writer in writers:
                writer.images("train", step, "inputs", images)
        if self._plan.histograms is not None and self._plan.histograms.due(step):
            gradients = self._gradients(self._opened(step), number)
            for name, values in self._histograms(gradients) if writers else ():
                for writer in writers:
                    writer.histogram("train", step, name, values)

    def _opened(self, step: int) -> Any:
        return self._loop.feed.start(step, self._state.guard.left_out.numpy())

    def _histograms(self, gradients: dict[str, list[tf.Tensor]]) -> Iterator[tuple[str, np.ndarray]]:
        models = self._state.task.models
        for model, found in gradients.items():
            seen: dict[str, int] = {}
            for variable, gradient in zip(models[model].trainable_variables, found, strict=True):
                name = variable.name.partition(":")[0]
                seen[name] = seen.get(name, 0) + 1
                name = name if seen[name] == 1 else f"{name}_{seen[name]}"
                name = name if len(models) == 1 else f"{model}/{name}"
                yield f"weights/{name}", variable.numpy()
                yield f"gradients/{name}", gradient.numpy()

    @tf.function(autograph=False)
    def _images(self, opened: Any, index: tf.Tensor) -> tf.Tensor:
        """Gives the first features of step `index` that replicas of this process are given, [at most MAX_IMAGES, ...]."""

        def on_replica(taken: Any) -> tf.Tensor:
            with self._loop.replica_batch(index, taken) as batch:
                return batch["features"][:MAX_IMAGES]

        strategy = self._loop.strategy
        features = strategy.run(on_replica, args=(self._loop.feed.take(opened),))
        return tf.concat(strategy.experimental_local_results(features), axis=0)[:MAX_IMAGES]

    @tf.function(autograph=False)
    def _gradients(self, opened: Any, index: tf.Tensor) -> dict[str, list[tf.Tensor]]:
        """Gives the gradients that step `index` would be made with: added up over all replicas, not yet clipped, model -> [...]."""
        log, strategy = CollectiveLog(), self._loop.strategy
        moving = [part for variable in self._moving() for part in strategy.experimental_local_results(variable)]
        before = [part.read_value() for part in moving]

        def on_replica(taken: Any) -> dict[str, list[tf.Tensor]]:
            with self._loop.replica_batch(index, taken) as batch:
                step = _Look(index, self._options, log)
                self._state.task.train_step(batch, step)
                step.end()
            return {name: step.gradients[id(model)] for name, model in self._state.task.models.items() if id(model) in step.gradients}

        found = strategy.run(on_replica, args=(self._loop.feed.take(opened),))
        for part, value in zip(moving, before, strict=True):
            part.assign(value)
        # Already added up, so any replica's will do.
        return tf.nest.map_structure(lambda gradient: strategy.experimental_local_results(gradient)[0], found)

    def _moving(self) -> list[tf.Variable]:
        """Gives what a forward pass moves, such as the moving statistics of batch normalisation."""
        return [variable for model in self._state.task.models.values() for variable in model.non_trainable_variables]


class _Look(Step):
    """A step that gives its gradients instead of making an update: all of them are those at the weights before the step.

    Attributes:
        gradients: by the id of the model.
    """

    def __init__(self, index: tf.Tensor, options: StepOptions, log: CollectiveLog) -> None:
        super().__init__(index, options, log)
        self.gradients: dict[int, list[tf.Tensor]] = {}

    def minimize(self, loss_fn: LossFn, batch: Batch, model: tf.keras.Model, optimizer: Optimizer) -> Metrics:
        """Takes the gradients of the global batch; returns what `Step.minimize` would."""
        gradients, sums = self._accumulate(loss_fn, batch, model)
        packed = tf.stack([number for pair in sums.values() for number in pair])
        if self.num_replicas > 1:
            # Exactly, though the updates' sums may be rounded on their way.
            *gradients, packed = self.all_reduce([*gradients, packed])
        if (scale := self.options.loss_scale) is not None:
            gradients = [gradient / scale.value for gradient in gradients]
        self.gradients[id(model)] = gradients
        return {name: (packed[2 * number], packed[2 * number + 1]) for number, name in enumerate(sums)}


def as_images(features: np.ndarray) -> np.ndarray:
    """Gives features, [N, H, W] or [N, H, W, C], as images of uint8, [N, H, W, C].

    Each is stretched from its smallest to its largest value: features may be standardised. What is not finite is black.
    """
    features = features.astype(np.float64).reshape([*features.shape[:3], -1])
    finite = np.isfinite(features)
    low = np.min(features, axis=(1, 2, 3), keepdims=True, where=finite, initial=np.inf)
    high = np.max(features, axis=(1, 2, 3), keepdims=True, where=finite, initial=-np.inf)
    span = np.where(high > low, high - low, 1.0)
    return np.rint(255 * np.where(finite, (features - np.where(finite, low, 0.0)) / span, 0.0)).astype(np.uint8)
