"""Inspects the next step without updating any variable: its images, and histograms of gradients.

The samples of a step and all its random numbers follow from its number, so the inspection sees the
same batch, augmentation and dropout masks as the step itself. Training continues with the same bits
as without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.input.feature_specs import feature_words
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.step.assignments import unchanged
from trainer.engine.graph.step.metric_sums import Sums
from trainer.engine.graph.step.row_gradients import as_dense
from trainer.engine.graph.step.step_options import Gradients, Optimizer, StepOptions
from trainer.engine.graph.step.train_step import Step
from trainer.engine.plan import Plan, is_due
from trainer.errors import ConfigError
from trainer.summaries.writers.writer import Writer

MAX_IMAGES = 16
"""The most images that are shown at a time."""


class StepInspector:
    """Shows the next step's images after augmentation, and its weights and gradients as histograms.

    Collective: gradients are summed over all replicas.

    Raises:
        ConfigError: images are configured, but the features are not images.
    """

    def __init__(self, loop: TrainLoop, plan: Plan, features: Any) -> None:
        self._loop = loop
        self._state = loop.state
        self._plan = plan
        self.compiled = False
        shape = [] if tf.nest.is_nested(features) else list(features.shape)[1:]
        if plan.images and not (len(shape) == 2 or (len(shape) == 3 and shape[-1] in (1, 3, 4))):
            every_steps = plan.images[0].next_after(0)
            raise ConfigError(
                f"summary.images ({every_steps}) needs features that are images, "
                "[height, width] or [height, width, 1, 3 or 4]; those of this dataset are "
                f"{feature_words(features)}; add summary.images=null"
            )

    def show(self, step: int, writers: Sequence[Writer]) -> None:
        """Show what is due after `step` updates; collective."""
        number = tf.constant(step, tf.int64)
        if is_due(self._plan.images, step):
            images = as_images(self._images(self._iterator(step), number).numpy())
            for writer in writers:
                writer.images("train", step, "inputs", images)
        if is_due(self._plan.histograms, step):
            gradients = self._gradients(self._iterator(step), number)
            for name, values in self._histograms(gradients) if writers else ():
                for writer in writers:
                    writer.histogram("train", step, name, values)
        self.compiled = True

    def _iterator(self, step: int) -> Any:
        return self._loop.feed.open(step, self._state.divergence_monitor.left_out.numpy())

    def _histograms(
        self, gradients: dict[str, list[tf.Tensor]]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and values of all weights and gradients; equal names are numbered."""
        models = self._state.task.models
        for model, values in gradients.items():
            counts: dict[str, int] = {}
            for variable, gradient in zip(models[model].trainable_variables, values, strict=True):
                name = variable.name.partition(":")[0]
                counts[name] = counts.get(name, 0) + 1
                name = name if counts[name] == 1 else f"{name}_{counts[name]}"
                name = name if len(models) == 1 else f"{model}/{name}"
                yield f"weights/{name}", variable.numpy()
                yield f"gradients/{name}", gradient.numpy()

    @tf.function(autograph=False)
    def _images(self, iterator: Any, index: tf.Tensor) -> tf.Tensor:
        """Return the first features of step `index` in this process, [<= MAX_IMAGES, ...]."""

        def on_replica(element: Any) -> tf.Tensor:
            with self._loop.replica_batch(index, element) as batch:
                return batch["features"][:MAX_IMAGES]

        strategy = self._loop.strategy
        features = strategy.run(on_replica, args=(self._loop.feed.next(iterator),))
        return tf.concat(strategy.experimental_local_results(features), axis=0)[:MAX_IMAGES]

    @tf.function(autograph=False)
    def _gradients(self, iterator: Any, index: tf.Tensor) -> dict[str, list[tf.Tensor]]:
        """Return model -> gradients of step `index`, summed over replicas and not yet clipped."""
        log = CollectiveLog()
        strategy = self._loop.strategy

        def on_replica(element: Any) -> dict[str, list[tf.Tensor]]:
            with self._loop.replica_batch(index, element) as batch:
                step = GradientOnlyStep(index, self._loop.options, log)
                self._state.task.train_step(batch, step)
                step.end()
            gradients = {tuple(map(id, variables)): own for variables, own in step.updates}
            return {
                name: gradients[key]
                for name, model in self._state.task.models.items()
                if (key := tuple(map(id, model.trainable_variables))) in gradients
            }

        with unchanged(strategy, self._state.task.models.values()):
            gradients = strategy.run(on_replica, args=(self._loop.feed.next(iterator),))
        # Already summed: equal on all replicas.
        return tf.nest.map_structure(
            lambda gradient: strategy.experimental_local_results(gradient)[0], gradients
        )


class GradientOnlyStep(Step):
    """A step that keeps its gradients instead of applying them.

    Attributes:
        updates: of each update that it would make, the variables and their gradients, all at the
            weights before the step.
    """

    def __init__(self, index: tf.Tensor, options: StepOptions, log: CollectiveLog) -> None:
        super().__init__(index, options, log)
        self.updates: list[tuple[list[tf.Variable], list[tf.Tensor]]] = []

    def soft_update(
        self, target: tf.keras.Model, source: tf.keras.Model, tau: float | tf.Tensor
    ) -> None:
        """Leave the target as it is."""

    def _exchange(
        self, gradients: list[tf.Tensor], others: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sum exactly, though a step may compress its gradients on their way."""
        if self.options.shards is not None:
            return super()._exchange(gradients, others)
        summed = self.all_reduce([*gradients, *others])
        return summed[: len(gradients)], summed[len(gradients) :]

    def _apply(
        self, optimizer: Optimizer, variables: list[tf.Variable], gradients: Gradients, sums: Sums
    ) -> None:
        dense = [as_dense(x, v.shape) for x, v in zip(gradients, variables, strict=True)]
        self.updates.append((variables, dense))


def as_images(features: np.ndarray) -> np.ndarray:
    """Return features, [N, H, W] or [N, H, W, C], as images, [N, H, W, C] uint8.

    Each image is stretched from its smallest to its largest value, as features may be standardised.
    Values that are not finite are black.
    """
    features = features.astype(np.float64).reshape([*features.shape[:3], -1])
    finite = np.isfinite(features)
    low = np.min(features, axis=(1, 2, 3), keepdims=True, where=finite, initial=np.inf)
    high = np.max(features, axis=(1, 2, 3), keepdims=True, where=finite, initial=-np.inf)
    span = np.where(high > low, high - low, 1.0)
    return np.rint(
        255 * np.where(finite, (features - np.where(finite, low, 0.0)) / span, 0.0)
    ).astype(np.uint8)
