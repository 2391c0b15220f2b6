"""A step function of the user's own, compiled, and the optimizer that it updates with.

    results = strategy.run(step_fn, (element of the replica,))
    gather the results of all replicas

The elements come from plain iterators, which each process opens at any position: TensorFlow's
distributed iterator can neither be saved nor started anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.annotations import OneOf
from trainer.config.options import constraints
from trainer.engine.graph.checks.graph_check import GraphCheck
from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.randomness.random_layers import LayerDraws
from trainer.engine.graph.state.train_state import optimizer_trackables
from trainer.engine.graph.step.step_options import Optimizer, StepOptions, fused_class
from trainer.engine.graph.step.train_step import Step
from trainer.errors import ConfigError

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()

_draws = LayerDraws(1 << 30)  # no layer has this number


@dataclass(eq=False)
class UserStep:
    """Runs a step function on all replicas and gathers its results.

    Attributes:
        function: called on each replica with its element, or with nothing without an input;
            returns a nest of numbers or dense tensors of static shapes, or None.
        options: of the sums over the replicas.
        averaged: variables that each replica updates by itself, such as moving statistics.
    """

    function: Callable[..., Any]
    strategy: tf.distribute.Strategy
    options: StepOptions
    seed: int
    averaged: Sequence[tf.Variable]
    check: GraphCheck

    def __post_init__(self) -> None:
        self.collectives = CollectiveLog()

    @tf.function(autograph=False)
    def run(self, iterator: Any, index: tf.Tensor) -> Any:
        """Run one step; return the results of all replicas, stacked along the first dimension.

        Args:
            iterator: gives the elements of this process's replicas, one after the other; None:
                there is no input.
            index: number of the step, scalar int64.
        """
        self.collectives = CollectiveLog()  # of this trace
        count = len(self.strategy.extended.worker_devices)
        elements: list[Any] = []
        if iterator is not None:
            with tf.device("CPU:0"):
                elements = [iterator.get_next() for _ in range(count)]
        results = self.strategy.run(self._on_replica, args=(index, elements))
        results = tf.nest.map_structure(
            lambda result: self.strategy.experimental_local_results(result)[0], results
        )
        self.check("loop")
        return results

    def trace(self, iterator: Any) -> dict[str, str]:
        """Trace the step without running it; return the labels of its collectives.

        Raises:
            ConfigError: see `GraphCheck`.
        """
        self.run.get_concrete_function(iterator, tf.TensorSpec([], tf.int64))
        return self.collectives.labels()

    def _on_replica(self, index: tf.Tensor, elements: Sequence[Any]) -> Any:
        step = Step(index, self.options, self.collectives)
        arguments = [elements[step.replica % len(elements)]] if elements else []
        part = randomness.BatchPart(
            lambda: randomness.fold_seed(self.seed, index),
            _batch_size(arguments),
            step.replica,
            is_global=False,
        )
        with randomness.batch_part(part), _enter(step):
            result = self.function(*arguments)
            if self.averaged and step.num_replicas > 1:
                # At every step, as in the built-in loop: so a run that was saved and restored in
                # between goes on with the same bits.
                own = [variable.read_value() for variable in self.averaged]
                for variable, mean in zip(self.averaged, step.all_reduce(own, "mean"), strict=True):
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


class SharedOptimizer:
    """Updates variables by the sum or mean of all replicas' gradients.

    The gradient is clipped after it was reduced, so clipping does not depend on the number of
    replicas. The idea of `wrap_optimizer` is TF-Replicator's (Buchlovsky et al. 2019).

    Args:
        reduce: mean or sum, over the replicas.
        clip_norm: global norm to which the reduced gradient is clipped; None: it is not clipped.

    Raises:
        ConfigError: it is an optimizer of another kind, or an option is wrong.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        variables: Sequence[tf.Variable],
        *,
        reduce: str = "mean",
        clip_norm: float | None = None,
    ) -> None:
        if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            raise ConfigError(
                f"loop: wrap_optimizer needs an optimizer of tf.keras.optimizers.legacy, whose "
                f"updates are fused; {type(optimizer).__name__} is none, use "
                f"one such as {fused_class(optimizer)}"
            )
        if problem := constraints.check_value("reduce", reduce, OneOf("mean", "sum")):
            raise ConfigError(f"loop: wrap_optimizer: {problem}")
        if clip_norm is not None and clip_norm <= 0:
            raise ConfigError(f"loop: wrap_optimizer: clip_norm ({clip_norm}) must be > 0")
        self.optimizer = optimizer
        self.variables = list(variables)
        self._reduce = reduce
        self._clip_norm = clip_norm
        # Slots exist before the restore: a checkpoint that lacks one is then an error.
        optimizer._create_all_weights(self.variables)

    def trackables(self) -> dict[str, Any]:
        """Return the optimizer's variables as they are saved."""
        return optimizer_trackables(self.optimizer, self.variables)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, tf.Variable]]) -> None:
        """Reduce this replica's gradients with those of all others, clip them, and update.

        Args:
            grads_and_vars: the gradient and the variable of each update; None: no gradient.

        Raises:
            ValueError: a variable is none of those that the optimizer was wrapped for.
        """
        step = current_step("apply_gradients")
        pairs = list(grads_and_vars)
        ids = {id(variable) for variable in self.variables}
        for _, variable in pairs:
            if id(variable) not in ids:
                raise ValueError(
                    f"{variable.name} is none of the variables that wrap_optimizer was given"
                )
        dense = [_dense(gradient, variable) for gradient, variable in pairs]
        reduced, _ = step.sum_over_replicas(dense, [])
        if self._reduce == "mean":
            reduced = [gradient / step.num_replicas for gradient in reduced]
        if self._clip_norm is not None:
            reduced, _ = tf.clip_by_global_norm(reduced, self._clip_norm)
        step.update(self.optimizer, [variable for _, variable in pairs], reduced)

    def minimize(self, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        """Update all variables by the gradient of this replica's loss, which `tape` recorded."""
        gradients = tape.gradient(loss, self.variables)
        self.apply_gradients(zip(gradients, self.variables, strict=True))


def _dense(gradient: Any, variable: tf.Variable) -> tf.Tensor:
    if gradient is None:
        return tf.zeros(variable.shape, tf.float32)
    return tf.cast(tf.convert_to_tensor(gradient), tf.float32)
