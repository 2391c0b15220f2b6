"""Builds the training loop: on the batches of a dataset, or on what actors send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.cluster.fault_injection import Faults
from trainer.cluster.spec import Cluster
from trainer.config.instantiate import instantiate
from trainer.engine.graph.input.faulty_feed import FaultyFeed
from trainer.engine.graph.input.feed import Feed, Source
from trainer.engine.graph.loops.loop_factory import Loops
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.process_group import ProcessGroup
from trainer.protocols import Acts, Buffer
from trainer.reinforcement.actor_batches import ChiefBatches, RemoteBatches
from trainer.reinforcement.actor_feed import ActorFeed
from trainer.reinforcement.actor_loop import ActorTrainLoop
from trainer.reinforcement.batched_inference import BatchedInference
from trainer.reinforcement.environment_data import EnvironmentData
from trainer.reinforcement.learner_server import BatchLayout, LearnerServer
from trainer.reinforcement.rollout import FLAGS
from trainer.strategies.one_device import OneDevice
from trainer.strategies.strategy import Strategy
from trainer.worker.building.build_model import Learner
from trainer.worker.building.published_policy import acting_task, build_policy, policy_signature
from trainer.worker.context import WorkerContext


@dataclass(frozen=True)
class LoopBuilder:
    """Builds the training loop.

    Attributes:
        context: this process.
        strategy: the resolved strategy.
        tf_strategy: TensorFlow's strategy.
        learner: what is trained.
        options: what all steps have in common.
        process_group: the processes that train together.
        faults: the faults to inject.
    """

    context: WorkerContext
    strategy: Strategy
    tf_strategy: tf.distribute.Strategy
    learner: Learner
    options: StepOptions
    process_group: ProcessGroup
    faults: Faults

    def build(self, loops: Loops, train: Source) -> TrainLoop:
        """Return the loop.

        Args:
            loops: makes the loops of a dataset.
            train: the training split; not used where the batches come from actors.

        Raises:
            ConfigError: task and data do not go together, or the buffer refuses an option.
        """
        learner = self.learner
        parts: dict[str, Any] = {
            "state": learner.state,
            "options": self.options,
            "learning_rates": learner.learning_rates,
            "seed": self.context.experiment.seed,
        }
        if not isinstance(learner.dataset, EnvironmentData):
            return loops.train(learner.dataset, self._with_faults(loops.feed(train)), **parts)
        task = acting_task(learner.task)
        actor_feed = self._actor_feed(task, learner.dataset)
        loop = ActorTrainLoop(
            self.tf_strategy,
            learner.dataset,
            self._with_faults(actor_feed),
            actor_feed=actor_feed,
            frames_per_step=learner.sizes.global_size * task.unroll_length,
            **parts,
        )
        return loops.checked(loop)

    def _with_faults(self, feed: Feed) -> Feed:
        """Return the feed of training batches, with the faults that are injected there."""
        delays = self.faults.take_step_delays()
        if not self.faults.changes_steps:
            return feed
        # In all processes, also in those without the fault: to create its variable is collective.
        index = tf.distribute.coordinator.experimental_get_current_worker_index
        with self.tf_strategy.scope():
            is_remote = self.strategy.asynchronous
            return FaultyFeed(feed, self.faults, delays, index if is_remote else None)

    def _actor_feed(self, task: Acts, data: EnvironmentData) -> ActorFeed:
        learner = self.learner
        counts = learner.state.frame_counts
        assert counts is not None, "see build_learner"
        specs = _batch_specs(task, data, learner.sizes.per_replica)
        return ActorFeed(
            self.tf_strategy,
            self._batches(task, list(specs)),
            specs,
            num_replicas=learner.sizes.num_replicas,
            models=[learner.task.models[name] for name in task.acting_models],
            counts=counts,
        )

    def _batches(self, task: Acts, names: list[str]) -> ChiefBatches | RemoteBatches:
        context = self.context
        if not self.process_group.is_chief:
            return RemoteBatches(context.run_dir, context.channel.beat)
        buffer: Buffer = instantiate(context.experiment.buffer, "buffer")
        sizes = self.learner.sizes
        layout = BatchLayout(names, task.unroll_length, sizes.num_replicas, sizes.per_replica)
        host = _host(context.cluster)
        server = LearnerServer(
            context.run_dir, buffer, layout, host=host, inference=self._inference()
        )
        patience_secs = context.experiment.watchdog.stall_secs
        return ChiefBatches(server, context.channel.beat, patience_secs)

    def _inference(self) -> BatchedInference | None:
        """Return what acts for the actors, if this process does, with weights of its own.

        Not with those that are trained: a step would change some of them meanwhile.
        """
        experiment = self.context.experiment
        data = self.learner.dataset
        assert isinstance(data, EnvironmentData)
        if experiment.actors.inference == "actor" or not experiment.trains:
            return None
        tf_strategy = OneDevice().create(self.context.cluster)
        policy = build_policy(experiment, tf_strategy, data)
        return BatchedInference(policy, data.spec, experiment.seed)


def _batch_specs(task: Acts, data: EnvironmentData, size: int) -> dict[str, tf.TensorSpec]:
    """Return shape and type of the arrays of one replica's batch, [B, ...], by name."""
    spec = data.spec
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
