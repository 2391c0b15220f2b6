"""The training loop of a task whose batches come from actors."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.config.instantiate import instantiate
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.loop_parts import LoopParts
from trainer.protocols import Acts, Buffer, Dataset, EnvSpec
from trainer.reinforcement.actor_feed import ActorFeed, ChiefBatches, RemoteBatches
from trainer.reinforcement.batched_inference import BatchedInference
from trainer.reinforcement.learner_server import BatchLayout, LearnerServer
from trainer.reinforcement.published_policy import PublishedPolicy, acting_task, policy_signature
from trainer.reinforcement.rollout import FLAGS


class ActorTrainLoop(TrainLoop):
    """Runs training steps on unrolls, and tells what became of the frames.

    Args:
        parts: what a loop is built from.
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
        batches=_batches(parts, task, spec, list(specs)),
        specs=specs,
        num_replicas=parts.sizes.num_replicas,
        models=[parts.state.task.models[name] for name in task.acting_models],
        counts=counts,
    )
    frames_per_step = parts.sizes.global_size * task.unroll_length
    return ActorTrainLoop(parts, data, actor_feed, frames_per_step)


def _batches(
    parts: LoopParts, task: Acts, spec: EnvSpec, names: list[str]
) -> ChiefBatches | RemoteBatches:
    beat = parts.channel.beat
    if not parts.process_group.is_chief:
        return RemoteBatches(parts.run_dir, beat)
    experiment = parts.experiment
    buffer: Buffer = instantiate(experiment.buffer, "buffer")
    sizes = parts.sizes
    layout = BatchLayout(names, task.unroll_length, sizes.num_replicas, sizes.per_replica)
    inference = None
    if experiment.actors.inference == "learner" and experiment.trains:
        # Not with the weights that are trained: a step would change some of them meanwhile.
        policy = PublishedPolicy(parts.build_task(), spec)
        inference = BatchedInference(policy, spec, experiment.seed)
    host = _host(parts.cluster)
    server = LearnerServer(parts.run_dir, buffer, layout, host=host, inference=inference)
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
