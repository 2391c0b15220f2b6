"""The training loop of a task whose batches come from actors, and the feed of their unrolls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.config.instantiate import instantiate
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.loop_parts import LoopParts
from trainer.protocols import Acts, Batch, Buffer, Dataset, EnvSpec
from trainer.reinforcement.learner_client import LearnerClient
from trainer.reinforcement.learner_server import BatchLayout, Closed, LearnerServer, Part
from trainer.reinforcement.published_policy import acting_task, policy_signature
from trainer.reinforcement.rollout import FLAGS


class ChiefBatches:
    """Takes batches from the server in this process, and publishes weights through it.

    Args:
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
    """Feeds the unrolls of actors, in batches that all replicas agree on.

    Before each step the chief's process publishes the weights of the models that act.

    Attributes:
        specs: name -> shape and type of an array of one replica's part, [B, ...].
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
            # What waits for unrolls must not hold a thread of the steps that publish weights.
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


class ActorTrainLoop(TrainLoop):
    """Runs training steps on unrolls, and tells what became of the frames.

    Args:
        data: stands for the dataset.
        actor_feed: how unrolls reach the replicas, without what wraps it.
        frames_per_step: frames in the batch of a step.
    """

    def __init__(
        self, parts: LoopParts, data: Dataset, actor_feed: ActorFeed, frames_per_step: int
    ) -> None:
        super().__init__(
            parts.strategy,
            data,
            parts.with_faults(actor_feed),
            state=parts.state,
            options=parts.options,
            learning_rates=parts.learning_rates,
            seed=parts.experiment.seed,
        )
        self._actor_feed = actor_feed
        self._frames_per_step = frames_per_step

    def totals(self) -> dict[str, int]:
        """Return the frames that were trained on, that have arrived, and what became of those."""
        generated, dropped, lost, waiting = map(int, self._actor_feed.counts.numpy())
        trained = int(self.state.step.numpy()) * self._frames_per_step
        return {
            "frames": trained,
            "frames_generated": generated,
            "frames_dropped": dropped,
            "frames_lost": lost,
            "frames_waiting": waiting,
        }

    def report(self) -> dict[str, float]:
        return {**super().report(), **{name: float(x) for name, x in self.totals().items()}}

    def last_lines(self) -> Iterable[str]:
        yield from super().last_lines()
        totals = self.totals()
        yield (
            f"Frames: {totals['frames']:,} trained; {totals['frames_generated']:,} generated, "
            f"{totals['frames_dropped']:,} dropped, {totals['frames_lost']:,} lost with a learner, "
            f"{totals['frames_waiting']:,} left over."
        )

    def close(self, *, finished: bool) -> None:
        self._actor_feed.close(finished=finished)


def make_loop(parts: LoopParts, data: Dataset, spec: EnvSpec) -> ActorTrainLoop:
    """Return the loop that trains on what actors send.

    Raises:
        ConfigError: the task does not act, or the buffer refuses an option.
    """
    task = acting_task(parts.state.task)
    counts = parts.state.frame_counts
    assert counts is not None, "`EnvironmentData` names them"
    specs = _batch_specs(task, spec, parts.sizes.per_replica)
    actor_feed = ActorFeed(
        strategy=parts.strategy,
        batches=_batches(parts, task, list(specs)),
        specs=specs,
        num_replicas=parts.sizes.num_replicas,
        models=[parts.state.task.models[name] for name in task.acting_models],
        counts=counts,
    )
    frames_per_step = parts.sizes.global_size * task.unroll_length
    return ActorTrainLoop(parts, data, actor_feed, frames_per_step)


def _batches(parts: LoopParts, task: Acts, names: list[str]) -> ChiefBatches | RemoteBatches:
    beat = parts.channel.beat
    if not parts.process_group.is_chief:
        return RemoteBatches(parts.run_dir, beat)
    experiment = parts.experiment
    buffer: Buffer = instantiate(experiment.buffer, "buffer")
    sizes = parts.sizes
    layout = BatchLayout(names, task.unroll_length, sizes.num_replicas, sizes.per_replica)
    server = LearnerServer(parts.run_dir, buffer, layout, host=_host(parts.cluster))
    return ChiefBatches(server, beat, experiment.watchdog.stall_secs)


def _batch_specs(task: Acts, spec: EnvSpec, size: int) -> dict[str, tf.TensorSpec]:
    """Return shape and type of the arrays of one replica's batch, [B, ...], by name."""
    acted = tf.function(task.act, autograph=False).get_concrete_function(*policy_signature(spec))
    length = task.unroll_length
    outputs = {
        name: tf.TensorSpec([size, length, *output.shape[1:]], output.dtype)
        for name, output in acted.structured_outputs.items()
    }
    flags = {name: tf.TensorSpec([size, length], tf.float32) for name in FLAGS}
    observation = tf.TensorSpec([size, length + 1, *spec.observation_shape], spec.observation_dtype)
    staleness = tf.TensorSpec([size], tf.float32)
    return {"observation": observation, **outputs, **flags, "staleness": staleness}


def _host(cluster: Cluster) -> str:
    """Return the address by which the actors reach this process, the chief."""
    if cluster.is_local or not cluster.jobs:
        return "127.0.0.1"
    process_id = cluster.process_id
    return cluster.jobs[process_id.job][process_id.index].rpartition(":")[0].strip("[]")
