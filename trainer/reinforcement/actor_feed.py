"""Feeds unrolls: what actors in other processes send, in batches that all replicas agree on.

And gives the actors the newest weights: before each step the chief's process publishes those of the
models that act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import tensorflow as tf

from trainer.protocols import Batch


class Batches(Protocol):
    """Where the parts of a batch come from."""

    @property
    def publish(self) -> Callable[..., None] | None:
        """Takes the weights before each step; None: another process publishes them."""

    def begin(self, step: int, counts: np.ndarray, weights: Sequence[np.ndarray]) -> None:
        """Begin with a step; see `LearnerServer.begin`."""

    def part(self, step: int, replica: int) -> list[np.ndarray]:
        """Return one replica's part of the batch of a step, and the counts of frames."""

    def close(self, *, finished: bool) -> None:
        """End: no part is asked for any more."""


class ActorFeed:
    """Feeds the unrolls of actors.

    Attributes:
        counts: the frames, in the order of `LearnerServer.COUNTS`, as of the last step: int64.

    Args:
        strategy: TensorFlow's strategy.
        batches: where the parts come from.
        specs: name -> shape and type of an array of one replica's part, [B, ...].
        num_replicas: replicas that share a step.
        models: those that act.
        counts: see above; it is in every checkpoint.
    """

    fetches: ClassVar[bool] = True

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        batches: Batches,
        specs: Mapping[str, tf.TensorSpec],
        *,
        num_replicas: int,
        models: Sequence[tf.keras.Model],
        counts: tf.Variable,
    ) -> None:
        self._strategy = strategy
        self._batches = batches
        self._specs = dict(specs)
        self._num_replicas = num_replicas
        self._variables = [variable for model in models for variable in model.variables]
        self.counts = counts

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        self._batches.begin(
            step, self.counts.numpy(), [variable.numpy() for variable in self._variables]
        )
        types = [*(spec.dtype for spec in self._specs.values()), tf.int64]

        def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = self._num_replicas // context.num_input_pipelines
            first = context.input_pipeline_id * local

            def element(number: tf.Tensor) -> tuple[Batch, tf.Tensor, tf.Tensor]:
                where = [number // local, first + number % local]
                *arrays, counts = tf.numpy_function(self._part, where, types)
                return self._element(arrays, counts)

            numbers = tf.data.Dataset.range(step * local, tf.int64.max)
            # What waits for unrolls must not hold a thread of those that act: they make them.
            options = tf.data.Options()
            options.threading.private_threadpool_size = 1
            return numbers.map(element).prefetch(local).with_options(options)

        return iter(self._strategy.distribute_datasets_from_function(pipeline))

    def next(self, iterator: Any) -> Any:
        published = []
        if self._batches.publish is not None:
            values = [variable.read_value() for variable in self._variables]
            published = [tf.numpy_function(self._batches.publish, values, [])]
        # First the weights: where actors are to be no step behind, the batch waits for them.
        with tf.control_dependencies(published):
            element = iterator.get_next()
        _, _, counts = element
        self.counts.assign(self._strategy.experimental_local_results(counts)[0])
        return element

    def replica_batch(
        self, element: Any, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        batch, draws, _ = element
        return batch, draws

    def close(self, *, finished: bool) -> None:
        """Let the actors leave; `finished`: the training has reached its end."""
        self._batches.close(finished=finished)

    def _part(self, step: np.ndarray, replica: np.ndarray) -> list[np.ndarray]:
        return self._batches.part(int(step), int(replica))

    def _element(
        self, arrays: Sequence[tf.Tensor], counts: tf.Tensor
    ) -> tuple[Batch, tf.Tensor, tf.Tensor]:
        batch = {}
        for (name, spec), array in zip(self._specs.items(), arrays, strict=True):
            batch[name] = tf.ensure_shape(array, spec.shape)
        size = next(iter(self._specs.values())).shape[0]
        batch["weight"] = tf.ones([size])
        batch["id"] = tf.zeros([size], tf.int64)  # no frame is ever seen again
        return batch, tf.zeros([size, 0]), tf.ensure_shape(counts, self.counts.shape)
