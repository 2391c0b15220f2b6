"""The compiled training loop: many steps inside one graph call.

    while i < count:              # outside the replicas: inside, TensorFlow cannot update variables
        element = feed.next(iterator)
        strategy.run(replica_step, (step + i, element))

On one replica, a batch that is gathered in the graph is gathered during the step before, and
carried to its own: what the body of the loop returns, the index too, comes after all its updates.
The number of steps in a call changes no result: nothing inside depends on where a call begins.
AutoGraph is off: converting the engine's own code took most of the time to the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.input.feed import Feed, Gathered, InGraph
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.accumulation import of_each_shard
from trainer.engine.graph.step.metric_sums import pack
from trainer.engine.graph.step.train_step import Step, StepOptions
from trainer.engine.graph.step.update_check import VERDICT_SIZE, DivergenceStatus, Verdict
from trainer.protocols import Batch, Dataset
from trainer.runs.ledger import WorkerRecord


@dataclass(eq=False, repr=False)
class TrainLoop:
    """Runs training steps and adds their metrics to the state's sums.

    Attributes:
        on_traced: called with the graph of a step whenever one is traced.
        collectives: the collectives of this process's replicas in a step; known when `run` has
            been traced.
        schedules: the learning rate of each optimizer at a step, by its name in the log.
    """

    strategy: tf.distribute.Strategy
    dataset: Dataset
    feed: Feed
    _: KW_ONLY
    state: TrainState
    options: StepOptions
    schedules: Mapping[str, Callable[[tf.Tensor], tf.Tensor]]
    seed: int
    on_traced: Callable[[tf.Graph], None] = lambda graph: None
    check: Callable[[str], None] = lambda subject: None

    def __post_init__(self) -> None:
        self._task = self.state.task
        self.collectives = CollectiveLog()

    @tf.function(autograph=False)
    def run(self, iterator: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, DivergenceStatus]:
        """Run `count` (scalar int64) steps.

        Returns:
            The sums of the summary window, [2 * metrics] float64; the seconds that the steps waited
            for their input, float64; the divergence status: if it names a step, discard the state.
        """
        state = self.state
        monitor = state.divergence_monitor
        self.collectives = CollectiveLog()  # of this trace
        end = state.step.read_value() + count

        def one_step(index: tf.Tensor, *carried: Any) -> tuple[Any, ...]:
            window, epoch, norm, waited, status, *gathered = carried
            following = self._gather_ahead(iterator, index + 1)
            element = gathered[0] if gathered else self.feed.next(iterator)
            if self.feed.fetches and not is_op_determinism_enabled():  # then no clock may be read
                # Before the step: TensorFlow keeps the order of operations that read the clock.
                waited += input_wait(index, element)
            # Added step by step: so no bit depends on the length of the loop.
            sums, verdict = self._step(index, element)
            is_dropped = verdict.is_bad
            if state.loss_scale is not None:  # or float16 could not represent the update
                is_dropped |= ~tf.math.is_finite(verdict.norm)
            norm = tf.where(is_dropped, norm, verdict.norm)
            status = monitor.note(status, index, verdict)
            self.on_traced(tf.compat.v1.get_default_graph())
            return index + 1, window + sums, epoch + sums, norm, waited, status, *following

        start = [
            variable.read_value()
            for variable in (state.step, state.summary_sums, state.epoch_sums, state.gradient_norm)
        ]
        first = self._gather_ahead(iterator, start[0])
        _, window, epoch, norm, waited, status, *_ = tf.while_loop(
            lambda index, *_: index < end,
            one_step,
            (*start, tf.zeros([], tf.float64), monitor.begin(), *first),
        )
        state.step.assign(end)
        state.summary_sums.assign(window)
        state.epoch_sums.assign(epoch)
        state.gradient_norm.assign(norm)
        monitor.end(status)
        self.check("the training step")
        return window, waited, status

    def trace(self, iterator: Any) -> dict[str, str]:
        """Trace the step without running it; return the labels of its collectives."""
        self.run.get_concrete_function(iterator, tf.TensorSpec([], tf.int64))
        return self.collectives.labels()

    def learning_rates(self, step: int) -> dict[str, float]:
        """Return the learning rate of each optimizer in step `step`, counted from 0, by name."""
        index = tf.constant(step, tf.int64)
        return {name: float(rate(index)) for name, rate in self.schedules.items()}

    def report(self) -> dict[str, float]:
        """Return further values for the log, by name: of the last step or call, or of the run."""
        norm = {"gradient_norm": float(self.state.gradient_norm.numpy())}
        return {**norm, **self.state.divergence_monitor.report()}

    def take_worker_record(self) -> WorkerRecord:
        """Return what workers did since the last call, as seen by this process only."""
        return WorkerRecord()

    def totals(self) -> dict[str, int]:
        """Return what else the run has counted, for its result."""
        return {}

    def close(self, *, finished: bool) -> None:
        """Let those leave that make the input; `finished`: the training has reached its end."""

    def first_lines(self) -> Iterable[str]:
        """Return further lines for the user before the first step."""
        return ()

    def last_lines(self) -> Iterable[str]:
        """Return further lines for the user after the last step."""
        if dropped := self.state.divergence_monitor.report():
            yield f"{dropped['updates_skipped']:.0f} updates were dropped (divergence.action=skip)."

    def _gather_ahead(self, iterator: Any, index: tf.Tensor) -> list[Gathered]:
        """Return what step `index` is fed, if that can be gathered before the step; or []."""
        feed = self.feed
        if not isinstance(feed, InGraph) or self.strategy.num_replicas_in_sync > 1:
            return []
        element = feed.next(iterator)

        def gather(index: tf.Tensor) -> Gathered:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return Gathered(*feed.replica_batch(element, index, replica))

        return [self.strategy.run(gather, args=(index,))]

    def _step(self, index: tf.Tensor, element: Any) -> tuple[tf.Tensor, Verdict]:
        """Run one step; return the sums of its metrics, float64, and the verdict."""
        results = self.strategy.run(self._replica_step, args=(index, element))
        numbers = self.strategy.experimental_local_results(results)[0]
        sums = numbers[:-VERDICT_SIZE]
        return tf.cast(sums, tf.float64), Verdict.unpack(numbers[-VERDICT_SIZE:])

    @contextmanager
    def replica_batch(self, index: tf.Tensor, element: Any) -> Iterator[Batch]:
        """Provide this replica's batch of step `index`, in replica context.

        What is traced inside has the randomness of that step.
        """
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group
        num_replicas = context.num_replicas_in_sync
        batch, draws = (
            element
            if isinstance(element, Gathered)
            else self.feed.replica_batch(element, index, replica)
        )
        static = tf.get_static_value(replica)
        number = tf.cast(replica, tf.int64) if static is None else int(static)
        part = randomness.BatchPart(
            lambda: randomness.fold_seed(self.seed, index),
            size=int(draws.shape[0]),
            number=number,
            num_parts=num_replicas,
        )
        with randomness.batch_part(part):
            num_shards = (self.options.shards or num_replicas) // num_replicas
            transform = self.dataset.transform
            changed = of_each_shard(lambda x: dict(transform(*x)), (batch, draws), num_shards)
            yield {**batch, **changed}

    def _replica_step(self, index: tf.Tensor, element: Any) -> tf.Tensor:
        """Run one step on this replica; return its sums and its verdict, packed, float32."""
        with self.replica_batch(index, element) as batch:
            step = Step(index, self.options, self.collectives)
            metrics = self._task.train_step(batch, step)
            step.end()
        self.state.update_averages(index, step.dropped)
        sums = pack(self._task, metrics)
        sums = tf.where(step.dropped, tf.zeros_like(sums), sums)
        return tf.concat([sums, step.verdict.pack()], axis=0)


def input_wait(index: tf.Tensor, element: Any) -> tf.Tensor:
    """Return how many seconds a step of the loop waited for its input, scalar float64.

    The executor fetches ahead, while the step before still runs. The index of a step, however,
    comes out of the step before when that has made all its updates: only what is still missing
    then is waited for.
    """
    with tf.control_dependencies([index]):
        before = tf.timestamp()
    with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
        after = tf.timestamp()
    return tf.maximum(after - before, 0.0)
