"""Feeds unrolls: what actors in other processes send, in batches that all replicas agree on.

And gives the actors the newest weights: before each step the chief's process publishes those of the
models that act.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from trainer.protocols import Batch
from trainer.reinforcement.learner_client import LearnerClient
from trainer.reinforcement.learner_server import Closed, LearnerServer, Part


class ChiefBatches:
    """Takes batches from the server in this process, and publishes weights through it.

    Args:
        server: the server.
        beat: called while it waits for unrolls.
        patience_secs: how long without an unroll the wait still counts as progress.
    """

    def __init__(
        self, server: LearnerServer, beat: Callable[[], None], patience_secs: float
    ) -> None:
        self._server = server
        self._beat = beat
        self._patience_secs = patience_secs
        self.publish: Callable[..., None] | None = server.publish
        self.begin = server.begin
        self.close = server.close

    def part(self, step: int, replica: int) -> Part:
        """Return one replica's part of the batch of a step, and the counts of frames."""
        return self._server.part(step, replica, self._on_wait)

    def _on_wait(self) -> None:
        # Without actors for so long the watchdog is to end this attempt.
        if time.monotonic() - self._server.arrived_at < self._patience_secs:
            self._beat()


class RemoteBatches:
    """Takes batches from the chief's process.

    Args:
        run_dir: the run directory.
        beat: called while it waits for them.
    """

    publish: Callable[..., None] | None = None

    def __init__(self, run_dir: Path, beat: Callable[[], None]) -> None:
        self._client = LearnerClient(run_dir, self._on_wait)
        self._beat = beat
        self._is_closed = False

    def begin(self, step: int, counts: np.ndarray, weights: Sequence[np.ndarray]) -> None:
        """Do nothing: the chief begins."""

    def part(self, step: int, replica: int) -> Part:
        return list(self._client.part(step, replica))

    def close(self, *, finished: bool) -> None:
        # The pipeline that fetches ahead ends by itself: this process waits for its thread.
        self._is_closed = True

    def _on_wait(self) -> None:
        if self._is_closed:
            raise Closed
        self._beat()


@dataclass(kw_only=True, eq=False)
class ActorFeed:
    """Feeds the unrolls of actors.

    Attributes:
        strategy: TensorFlow's strategy.
        batches: where the parts come from.
        specs: name -> shape and type of an array of one replica's part, [B, ...].
        num_replicas: replicas that share a step.
        models: those that act.
        counts: the frames, in the order of `LearnerServer.COUNTS`, as of the last step: int64; it
            is in every checkpoint.
    """

    fetches: ClassVar[bool] = True

    strategy: tf.distribute.Strategy
    batches: ChiefBatches | RemoteBatches
    specs: Mapping[str, tf.TensorSpec]
    num_replicas: int
    models: Sequence[tf.keras.Model]
    counts: tf.Variable

    def __post_init__(self) -> None:
        self._variables = [variable for model in self.models for variable in model.variables]

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        self.batches.begin(
            step, self.counts.numpy(), [variable.numpy() for variable in self._variables]
        )
        types = [*(spec.dtype for spec in self.specs.values()), tf.int64]

        def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = self.num_replicas // context.num_input_pipelines
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

        return iter(self.strategy.distribute_datasets_from_function(pipeline))

    def next(self, iterator: Any) -> Any:
        published = []
        if self.batches.publish is not None:
            values = [variable.read_value() for variable in self._variables]
            published = [tf.numpy_function(self.batches.publish, values, [])]
        # First the weights: where actors are to be no step behind, the batch waits for them.
        with tf.control_dependencies(published):
            element = iterator.get_next()
        _, _, counts = element
        self.counts.assign(self.strategy.experimental_local_results(counts)[0])
        return element

    def replica_batch(
        self, element: Any, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        batch, draws, _ = element
        return batch, draws

    def close(self, *, finished: bool) -> None:
        """Let the actors leave; `finished`: the training has reached its end."""
        self.batches.close(finished=finished)

    def _part(self, step: np.ndarray, replica: np.ndarray) -> list[np.ndarray]:
        return self.batches.part(int(step), int(replica))

    def _element(
        self, arrays: Sequence[tf.Tensor], counts: tf.Tensor
    ) -> tuple[Batch, tf.Tensor, tf.Tensor]:
        batch = {}
        for (name, spec), array in zip(self.specs.items(), arrays, strict=True):
            batch[name] = tf.ensure_shape(array, spec.shape)
        size = next(iter(self.specs.values())).shape[0]
        batch["weight"] = tf.ones([size])
        batch["id"] = tf.zeros([size], tf.int64)  # no frame is ever seen again
        return batch, tf.zeros([size, 0]), tf.ensure_shape(counts, self.counts.shape)
