"""Computes one shard of the next step on every replica, so that their results can be compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.audit.copies import Copy
from trainer.engine.graph.exchange.collective_log import CollectiveLog
from trainer.engine.graph.input.feed import Source, block_of
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.step.metric_sums import flat_sums
from trainer.engine.graph.step.moving_statistics import unchanged
from trainer.engine.graph.step.shards import cut
from trainer.engine.graph.step.step_options import Gradients, StepOptions
from trainer.engine.step_inspector import GradientOnlyStep


class RecomputedShard:
    """Computes what one shard adds to a step, everywhere alike, and changes no variable.

    All replicas fetch the same samples, draw the same random numbers, and call the same kernels in
    the same shapes. So the bits of their results differ only where a processor or a memory errs.

    Args:
        loop: the training loop, of a batch in shards.
        source: where the batches come from.
        seed: the experiment's seed, which chooses the shards.
    """

    def __init__(self, loop: TrainLoop, source: Source, seed: int) -> None:
        assert loop.options.shards is not None, "see `build_auditor`"
        self._loop = loop
        self._source = source
        self._seed = seed
        self._num_shards = loop.options.shards
        self._names = {id(variable): name for name, variable in loop.state.variables().items()}

    def number(self, step: int) -> int:
        """Return the number of the shard that is computed after `step` steps."""
        return random.Random(f"{self._seed} {step}").randrange(self._num_shards)

    def compute(self, step: int) -> list[Copy]:
        """Return gradients and metric sums of a shard, as each replica of this process has them."""
        left_out = self._loop.state.divergence_monitor.left_out.read_value()
        results = self._compute(
            tf.constant(step, tf.int64), tf.constant(self.number(step), tf.int64), left_out
        )
        count = len(next(iter(results.values())))
        return [
            {name: np.asarray(values[i]) for name, values in results.items()} for i in range(count)
        ]

    @tf.function(autograph=False)
    def _compute(
        self, index: tf.Tensor, shard: tf.Tensor, left_out: tf.Tensor
    ) -> dict[str, Sequence[tf.Tensor]]:
        loop = self._loop
        per_replica = self._num_shards // self._source.num_replicas
        log = CollectiveLog()

        def on_replica() -> dict[str, tf.Tensor]:
            with tf.device("CPU:0"):
                whole = self._source.assemble(block_of(index, left_out), shard // per_replica)
                part = cut(whole, per_replica)(shard % per_replica)
            with loop.batch_part(index, *part, shard, self._num_shards) as batch:
                step = _ShardStep(index, loop.options, log, shard)
                metrics = loop.state.task.train_step(batch, step)
                step.end()
            sums = {f"sum of metric {x}": flat_sums({x: pair}) for x, pair in metrics.items()}
            return {**self._named(step), **sums}

        with unchanged(loop.strategy, loop.state.task.models.values()):
            results = loop.strategy.run(on_replica)
        return {
            name: loop.strategy.experimental_local_results(value) for name, value in results.items()
        }

    def _named(self, step: GradientOnlyStep) -> dict[str, tf.Tensor]:
        """Return the gradients of all updates of a step, by name."""
        return {
            f"gradient{f' {number}' if number else ''} of {self._names[id(variable)]}": gradient
            for number, (variables, gradients) in enumerate(step.updates)
            for variable, gradient in zip(variables, gradients, strict=True)
        }


class _ShardStep(GradientOnlyStep):
    """A step of one shard, which is summed with no other.

    The task sees a layout that has as many replicas as shards; this one is the shard's.
    """

    def __init__(
        self, index: tf.Tensor, options: StepOptions, log: CollectiveLog, shard: tf.Tensor
    ) -> None:
        super().__init__(index, options, log)
        assert options.shards is not None, "see `RecomputedShard`"
        self.num_replicas = options.shards
        self.replica = shard
        self.worker = 0

    def sum_over_replicas(
        self, gradients: Gradients, others: list[tf.Tensor]
    ) -> tuple[Gradients, list[tf.Tensor]]:
        """Return what this shard adds to the sums."""
        return gradients, others

    def _sum(self, flat: tf.Tensor, line: str) -> Any:
        return flat
