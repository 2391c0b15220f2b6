"""A step function of the user's own, compiled: every replica runs it on its own element.

    results = strategy.run(step_fn, (element of the replica,))
    gather the results of all replicas

The elements come from plain iterators, which each process opens at any position: TensorFlow's
distributed iterator can neither be saved nor started anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from trainer.engine.graph.checks.graph_check import GraphCheck
from trainer.engine.graph.exchange.collective_log import CollectiveLog
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.randomness.random_layers import LayerDraws
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()

_draws = LayerDraws(1 << 30)  # no layer has this number


class UserStep:
    """Runs a step function on all replicas and gathers its results.

    Attributes:
        collectives: the collectives of this process's replicas; known when `run` has been traced.

    Args:
        function: called on each replica with its element, or with nothing without an input;
            returns a nest of numbers or dense tensors of static shapes, or None.
        strategy: TensorFlow's strategy.
        options: of the sums over the replicas.
        seed: the experiment's seed.
        averaged: variables that each replica updates by itself, such as moving statistics.
        check: checks what has been traced.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        strategy: tf.distribute.Strategy,
        options: StepOptions,
        seed: int,
        averaged: Sequence[tf.Variable],
        check: GraphCheck,
    ) -> None:
        self._function = function
        self._strategy = strategy
        self._options = options
        self._seed = seed
        self._averaged = averaged
        self._check = check
        self.collectives = CollectiveLog()

    @tf.function(autograph=False)
    def run(self, iterator: Any, index: tf.Tensor) -> Any:
        """Run one step.

        Args:
            iterator: gives the elements of this process's replicas, one after the other; None:
                there is no input.
            index: number of the step, scalar int64.

        Returns:
            The results of all replicas, stacked along the first dimension.
        """
        self.collectives = CollectiveLog()  # of this trace
        count = len(self._strategy.extended.worker_devices)
        elements: list[Any] = []
        if iterator is not None:
            with tf.device("CPU:0"):
                elements = [iterator.get_next() for _ in range(count)]
        results = self._strategy.run(self._on_replica, args=(index, elements))
        results = tf.nest.map_structure(
            lambda result: self._strategy.experimental_local_results(result)[0], results
        )
        self._check("loop")
        return results

    def trace(self, iterator: Any) -> list[str]:
        """Trace the step without running it; return its collectives in order, a line each.

        Raises:
            ConfigError: see `GraphCheck`.
        """
        self.run.get_concrete_function(iterator, tf.TensorSpec([], tf.int64))
        return self.collectives.lines()

    def _on_replica(self, index: tf.Tensor, elements: Sequence[Any]) -> Any:
        step = Step(index, self._options, self.collectives)
        arguments = [elements[step.replica % len(elements)]] if elements else []
        part = randomness.BatchPart(
            lambda: randomness.fold_seed(self._seed, index),
            _batch_size(arguments),
            step.replica,
            is_global=False,
        )
        with randomness.batch_part(part), _enter(step):
            result = self._function(*arguments)
            if self._averaged and step.num_replicas > 1:
                # At every step, as in the built-in loop: so a run that was saved and restored in
                # between goes on with the same bits.
                own = [variable.read_value() for variable in self._averaged]
                for variable, mean in zip(
                    self._averaged, step.all_reduce(own, "mean"), strict=True
                ):
                    variable.assign(mean)
            gathered = None if result is None else step.all_gather(result)
            step.end()
        return gathered


def current_step(name: str) -> Step:
    """Return the step that is traced, on the current replica.

    Args:
        name: what is called, for the message.

    Raises:
        RuntimeError: there is none.
    """
    step: Step | None = getattr(_current, "step", None)
    if step is None:
        raise RuntimeError(f"{name} belongs into the function that replicator.run is given")
    return step


def step_seed() -> tf.Tensor:
    """Return a seed, [2] int64, that no other call, replica or step has."""
    current_step("random_seed")
    return _draws.seed()


@contextmanager
def _enter(step: Step) -> Iterator[None]:
    _current.step = step
    try:
        yield
    finally:
        _current.step = None


def _batch_size(arguments: Sequence[Any]) -> int:
    """Return the first dimension of a replica's element; 0 if it has none."""
    leaves = tf.nest.flatten(list(arguments))
    shape = leaves[0].shape if leaves else tf.TensorShape([])
    return int(shape[0] or 0) if shape.rank else 0
