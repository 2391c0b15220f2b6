"""An environment as a run's data: the loop that trains on what actors send, and the evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster
from trainer.config.batch_sizes import BatchSizes
from trainer.config.instantiate import instantiate
from trainer.config.schema import Experiment
from trainer.engine.evaluation.evaluator import Evaluation, Evaluator, Predictor
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.row_metrics import require_evaluated
from trainer.engine.graph.input.feed import Feed, NumberedSplit, Source, opened
from trainer.engine.graph.library_patches import untuned
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.pacing import Stopped
from trainer.engine.process_group import ProcessGroup
from trainer.protocols import Acts, Batch, Environment, EnvSpec, Split
from trainer.reinforcement.connection import COUNTS, Closed, LearnerClient, LearnerServer, Shard
from trainer.reinforcement.rollout import (
    FLAGS,
    EnvironmentGroup,
    acting_task,
    policy_signature,
    run_episodes,
    spec_of,
)


class Trained(Protocol):
    """What a training on unrolls uses of a `trainer.worker.training.TrainingRun`."""

    experiment: Experiment
    run_dir: Path
    channel: Channel
    cluster: Cluster
    tf_strategy: tf.distribute.Strategy
    group: ProcessGroup
    sizes: BatchSizes
    state: TrainState
    loop_options: Mapping[str, Any]

    def with_faults(self, feed: Feed) -> Feed:
        """Return a feed with the faults that are injected there."""


class ActorFeed:
    """Feeds the unrolls of actors, in batches that all replicas agree on.

    Before each step the chief's process publishes the weights of the models that act.

    Attributes:
        specs: name -> shape and type of an array of one replica's shard, [B, ...].
        counts: the frames, in the order of `COUNTS`, as of the last step: int64; it is in every
            checkpoint.
    """

    fetches: ClassVar[bool] = True

    def __init__(self, run: Trained, task: Acts, spec: EnvSpec) -> None:
        sizes, experiment = run.sizes, run.experiment
        assert run.state.frame_counts is not None, "`EnvironmentData` names them"
        self.specs = _batch_specs(task, spec, sizes.per_replica)
        self.counts = run.state.frame_counts
        self._strategy = run.tf_strategy
        self._num_replicas = sizes.num_replicas
        models = [run.state.task.models[name] for name in task.acting_models]
        self._variables = [variable for model in models for variable in model.variables]
        self._beat = run.channel.beat
        self._patience_secs = experiment.watchdog.stall_secs
        self._is_closed = False
        self._client = LearnerClient(run.run_dir, self._on_wait)
        self._server: LearnerServer | None = None
        if run.group.is_chief:
            self._server = LearnerServer(
                run.run_dir,
                instantiate(experiment.buffer, "buffer"),
                names=list(self.specs),
                length=task.unroll_length,
                num_replicas=sizes.num_replicas,
                per_replica=sizes.per_replica,
                host=_host(run.cluster),
            )

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        if self._server is not None:
            weights = [variable.numpy() for variable in self._variables]
            self._server.begin(step, self.counts.numpy(), weights)
        types = [*(spec.dtype for spec in self.specs.values()), tf.int64]

        def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = self._num_replicas // context.num_input_pipelines
            first = context.input_pipeline_id * local

            def element(number: tf.Tensor) -> tuple[Batch, tf.Tensor, tf.Tensor]:
                where = [number // local, first + number % local]
                *arrays, counts = tf.numpy_function(self._shard, where, types)
                return self._element(arrays, counts)

            numbers = tf.data.Dataset.range(step * local, tf.int64.max)
            # What waits for unrolls must not hold a thread of the steps that publish weights.
            options = tf.data.Options()
            options.threading.private_threadpool_size = 1
            return untuned(numbers.map(element).prefetch(local).with_options(options))

        return opened(self._strategy, pipeline)

    def next(self, iterator: Any) -> Any:
        published = []
        if self._server is not None:
            values = [variable.read_value() for variable in self._variables]
            published = [tf.numpy_function(self._server.publish, values, [])]
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
        # A pipeline that fetches ahead ends by itself: this process waits for its thread.
        self._is_closed = True
        if self._server is not None:
            self._server.close(finished=finished)

    def _shard(self, step: np.ndarray, replica: np.ndarray) -> Shard:
        if self._server is not None:
            return self._server.shard(int(step), int(replica), self._on_wait)
        return self._client.shard(int(step), int(replica))

    def _on_wait(self) -> None:
        if self._is_closed:
            raise Closed
        # Without actors for so long the watchdog is to end this attempt.
        server = self._server
        if server is None or time.monotonic() - server.arrived_at < self._patience_secs:
            self._beat()

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
    """Runs training steps on unrolls, and reports what became of the frames."""

    def __init__(self, run: Trained, data: EnvironmentData) -> None:
        task = acting_task(run.state.task)
        self._actor_feed = ActorFeed(run, task, data.env)
        self._frames_per_step = run.sizes.global_size * task.unroll_length
        super().__init__(
            run.tf_strategy, data, run.with_faults(self._actor_feed), **run.loop_options
        )

    def totals(self) -> dict[str, int]:
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


class EpisodeEvaluator(Evaluator):
    """Runs episodes with the greedy policy, in the chief's process; the others wait for it.

    The episodes start equally in each evaluation: two of them differ only by their weights.
    """

    names = ("return", "episode_length")

    def __init__(self, inference: Inference, make: Callable[[], Environment]) -> None:
        super().__init__()
        self._state = inference.state
        self._make = make
        self._num_episodes = inference.experiment.evaluate.episodes
        self._seed = inference.experiment.seed
        self._process_group = inference.process_group
        self._channel = inference.channel
        task = acting_task(inference.state.task)
        self._act = tf.function(task.act_greedily, autograph=False)
        self._is_compiled = False

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        self._state.swap_averages()
        try:
            text = ""
            if self._process_group.is_chief:
                with suppress(Stopped):
                    text = json.dumps(self._episodes(stop_requested, enter))
            text = self._process_group.broadcast_text_from_chief(text)
        finally:
            self._state.swap_averages()
        if not text:
            raise Stopped
        return Evaluation(json.loads(text))

    def _episodes(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None]
    ) -> dict[str, float]:
        def check() -> None:
            self._channel.beat()
            if stop_requested():
                raise Stopped

        def act(observations: np.ndarray) -> np.ndarray:
            actions: np.ndarray = self._act(tf.constant(observations)).numpy()
            return actions

        environments = [self._make() for _ in range(self._num_episodes)]
        group = EnvironmentGroup(environments, self._seed)
        if not self._is_compiled:
            enter("compile")
            act(group.observations)
            self._is_compiled = True
        enter("evaluate")
        try:
            episodes = run_episodes(group, act, check)
        finally:
            group.close()
        return {name: float(np.mean(values)) for name, values in episodes.items()}


class EnvironmentData:
    """Describes an environment as a dataset; its splits hold nothing.

    It has the members of `trainer.protocols.LoopDefaults`.

    Raises:
        ConfigError: it has observations or actions that are no arrays.
    """

    count_names = COUNTS

    def __init__(self, make: Callable[[], Environment]) -> None:
        self.make = make
        first = make()
        self.env: EnvSpec = spec_of(first)
        if hasattr(first, "close"):
            first.close()
        self.input_shape: tuple[int, ...] = self.env.observation_shape
        self.num_classes = self.env.num_outputs
        self.num_draws = 0
        # The length of an epoch is `train.steps_per_epoch`: there is no pass over the data.
        self.train: Split = NumberedSplit(1)
        self.test: Split = NumberedSplit(1)

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        return {}

    def make_loop(self, run: Trained) -> ActorTrainLoop:
        return ActorTrainLoop(run, self)

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> EpisodeEvaluator:
        require_evaluated(inference.experiment, EpisodeEvaluator.names, inference.directions)
        return EpisodeEvaluator(inference, self.make)
