"""The replicator: what a training loop of the user's own is called with.

    with replicator.context():           # variables are made here
        model = ...
        optimizer = replicator.wrap_optimizer(..., model.trainable_variables)
    replicator.checkpoint(model=model, optimizer=optimizer)    # restores, too
    while replicator.step < replicator.total_steps:
        losses = replicator.run(step_fn, input_fn)             # one for each replica

The names are those of TF-Replicator (Buchlovsky et al. 2019); saving, stopping, restarting and
comparing the processes are the engine's.

The elements of a step come from plain iterators, which each process opens at any position:
TensorFlow's distributed iterator can neither be saved nor started anywhere.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import tensorflow as tf

from trainer.annotations import OneOf
from trainer.config.options import constraints
from trainer.engine.graph.checks.graph_check import IN_LOOP, GraphCheck
from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.placement.step_devices import no_devices_for_variables
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.randomness.draws import convert_draws
from trainer.engine.graph.state.train_state import digests, named_variables, optimizer_trackables
from trainer.engine.graph.state.variables import read_from_first_replica, replicated
from trainer.engine.graph.step.step_options import Optimizer, StepOptions, fused_class
from trainer.engine.graph.step.train_step import Step
from trainer.errors import ConfigError
from trainer.own_loop.session import Session
from trainer.own_loop.streams import InputFn, Stream, Streams, function_name
from trainer.protocols import Replica

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


@dataclass(eq=False)
class UserStep:
    """Runs a step function on all replicas and gathers its results.

    Attributes:
        function: called on each replica with its element, or with nothing without an input;
            returns a nest of numbers or dense tensors of static shapes, or None.
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
        """Run a step; return the results of all replicas, stacked along the first dimension."""
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
        """Trace the step without running it; return the labels of its collectives."""
        self.run.get_concrete_function(iterator, tf.TensorSpec([], tf.int64))
        return self.collectives.labels()

    def _on_replica(self, index: tf.Tensor, elements: Sequence[Any]) -> Any:
        step = Step(index, self.options, self.collectives)
        arguments = [elements[step.replica % len(elements)]] if elements else []
        part = randomness.BatchPart(
            lambda: randomness.fold_seed(self.seed, index), size=0, number=step.replica
        )
        with randomness.batch_part(part), _enter(step):
            result = self.function(*arguments)
            if self.averaged and step.num_replicas > 1:
                # At every step, as in the built-in loop: so a run that was saved and restored in
                # between continues with the same bits.
                own = [variable.read_value() for variable in self.averaged]
                for variable, mean in zip(self.averaged, step.all_reduce(own, "mean"), strict=True):
                    variable.assign(mean)
            gathered = None if result is None else step.all_gather(result)
            step.end()
        return gathered


def current_step(name: str) -> Step:
    """Return the step that is traced, on the current replica.

    Raises:
        RuntimeError: there is none; `name` is what was called.
    """
    step: Step | None = getattr(_current, "step", None)
    if step is None:
        raise RuntimeError(f"{name} belongs into the function that replicator.run is given")
    return step


@contextmanager
def _enter(step: Step) -> Iterator[None]:
    _current.step = step
    try:
        yield
    finally:
        _current.step = None


class SharedOptimizer:
    """Updates variables by the sum or mean of all replicas' gradients.

    The gradient is clipped after it was reduced, so clipping does not depend on the number of
    replicas. The idea of `wrap_optimizer` is TF-Replicator's (Buchlovsky et al. 2019).

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
                f"updates are fused; {type(optimizer).__name__} is not, use "
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
            ValueError: the optimizer was not wrapped for a variable.
        """
        step = current_step("apply_gradients")
        pairs = list(grads_and_vars)
        ids = {id(variable) for variable in self.variables}
        for _, variable in pairs:
            if id(variable) not in ids:
                raise ValueError(
                    f"{variable.name} is not one of the variables that wrap_optimizer was given"
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


_RESERVED = ("step", "streams")

P = ParamSpec("P")


def _in_step(
    collective: Callable[Concatenate[Step, P], Any],
) -> Callable[Concatenate[Replicator, P], Any]:
    """Return a method that calls a collective of the step that is traced."""

    @functools.wraps(getattr(Replica, collective.__name__))
    def call(_: Replicator, *args: P.args, **kwargs: P.kwargs) -> Any:
        return collective(current_step(collective.__name__), *args, **kwargs)

    return call


class Replicator:
    """Runs a step function on all replicas, and keeps the run behind it.

    Attributes:
        total_steps: the length of the training, `train.steps`.
        num_replicas: replicas that share a step.
        worker: number of this process, from 0.
        num_workers: processes that share a step.
        is_chief: whether this process writes the files of the run.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, options: StepOptions, session: Session, seed: int
    ) -> None:
        convert_draws()
        group = session.process_group
        self.total_steps = session.total_steps
        self.num_replicas: int = strategy.num_replicas_in_sync
        self.worker = group.index
        self.num_workers = group.count
        self.is_chief = group.is_chief
        self._strategy = strategy
        self._options = options
        self._session = session
        with strategy.scope():
            self._streams = Streams(
                tf.distribute.InputContext(group.count, group.index, self.num_replicas),
                seed,
                session.channel.line,
            )
        self._seed = seed
        self._averaged: list[tf.Variable] = []
        self._check: GraphCheck | None = None  # None: `checkpoint` was not called yet
        self._steps: dict[str, tuple[Callable[..., Any], UserStep]] = {}
        self._traced: set[tuple[str, str]] = set()

    @property
    def step(self) -> int:
        """Number of steps made, also by earlier attempts."""
        return self._session.step

    @contextmanager
    def context(self) -> Iterator[None]:
        """Provide the scope in which all models, optimizers and variables are made."""
        # As in the built-in loop.
        read = nullcontext if self._options.optimizer_reduces else read_from_first_replica
        with self._strategy.scope(), no_devices_for_variables(), read():
            yield

    def wrap_optimizer(
        self,
        optimizer: Optimizer,
        variables: list[tf.Variable],
        *,
        reduce: str = "mean",
        clip_norm: float | None = None,
    ) -> SharedOptimizer:
        """Return an optimizer that reduces gradients over all replicas before it updates.

        Args:
            optimizer: one of `tf.keras.optimizers.legacy`.
            variables: all variables that it updates.
            reduce: mean or sum of the replicas' gradients.
            clip_norm: global norm to which the reduced gradient is clipped; None: do not clip.
        """
        with self._strategy.scope():
            return SharedOptimizer(optimizer, variables, reduce=reduce, clip_norm=clip_norm)

    def checkpoint(self, **objects: Any) -> None:
        """Declare what is saved, and restore the checkpoint if any; call it once, before `run`.

        Args:
            **objects: by name: models, optimizers of `wrap_optimizer`, variables.

        Raises:
            ConfigError: an object cannot be saved, or was not made within `context`.
            CheckpointError: the checkpoint does not fit them.
        """
        trackables = self._trackables(objects)
        variables = named_variables({name: _readable(value) for name, value in objects.items()})
        for name, variable in variables.items():
            if not self._strategy.extended.variable_created_in_scope(variable):
                raise ConfigError(
                    f"loop: the variable {name} was made outside of replicator.context(); "
                    "make it in the with block"
                )
        with self._strategy.scope():
            step = replicated(tf.constant(0, tf.int64), "step")
        own = {"step": step, "streams": self._streams.positions}

        def write(num_steps: int) -> None:
            step.assign(num_steps)
            self._streams.record()

        saved = {**trackables, **own}
        self._check = GraphCheck(lambda: saved, self._session.channel.line, IN_LOOP)
        self._session.begin(saved, step, write)
        self._session.process_group.assert_same(
            "variables", lambda: digests(variables, self._strategy)
        )
        self._streams.restore()
        self._averaged = [
            variable
            for variable in variables.values()
            if variable.synchronization == tf.VariableSynchronization.ON_READ
        ]

    def run(self, step_fn: Callable[..., Any], input_fn: InputFn | None = None) -> list[Any]:
        """Make one step: call `step_fn` on every replica, each with its own element.

        Saves before the step, if a save is due, what the user's code has made of the last one.

        Args:
            step_fn: traced once, without AutoGraph; returns a nest of numbers or tensors, or None.
            input_fn: called with a `tf.distribute.InputContext` in each process; returns the
                `tf.data.Dataset` whose elements the replicas of that process are given. None:
                `step_fn` has no argument.

        Returns:
            The result of each replica, the same list in every process.

        Raises:
            Stopped: a stop was requested; everything has been saved.
            ConfigError: a function is wrong, or the dataset has ended.
        """
        self._session.before_step()
        stream = None if input_fn is None else self._streams.stream(input_fn)
        compiled = self._compiled(step_fn, stream)
        index = tf.constant(self._session.step, tf.int64)
        try:
            results = compiled.run(None if stream is None else stream.iterator, index)
        except tf.errors.OutOfRangeError as error:
            assert input_fn is not None, "nothing else ends"
            raise ConfigError(
                f"loop: the dataset of {function_name(input_fn)} has ended at step {self.step}; "
                "add .repeat() to it"
            ) from error
        if stream is not None:
            stream.steps += 1
        self._session.after_step()
        return [
            tf.nest.map_structure(lambda x, n=number: None if x is None else x[n], results)
            for number in range(self.num_replicas)
        ]

    def log(self, **metrics: Any) -> None:
        """Write numbers of this step to the writers, and show them; every process calls it."""
        self._session.log({name: _number(value) for name, value in metrics.items()})

    # Within a step, those of the current replica.
    all_reduce = _in_step(Step.all_reduce)
    map_reduce = _in_step(Step.map_reduce)
    reduce_scatter = _in_step(Step.reduce_scatter)
    all_gather = _in_step(Step.all_gather)
    map_gather = _in_step(Step.map_gather)
    broadcast = _in_step(Step.broadcast)

    def replica(self) -> int:
        """Within a step: return the number of the replica, from 0."""
        return current_step("replica").replica

    def random_seed(self) -> tf.Tensor:
        """Within a step: return a seed, [2] int64, for `tf.random.stateless_*`.

        It depends on the run's seed, the step, the replica and the call, and on nothing else.
        """
        current_step("random_seed")
        return randomness.next_seed()

    def _compiled(self, step_fn: Callable[..., Any], stream: Stream | None) -> UserStep:
        """Return the compiled step function; trace it, and compare it with the other processes'."""
        if self._check is None:
            raise ConfigError("loop: call replicator.checkpoint(...) before replicator.run")
        name = function_name(step_fn)
        function, compiled = self._steps.get(name, (step_fn, None))
        if function is not step_fn:
            raise ConfigError(
                f"loop: two step functions are called {name}, and each is compiled once; define "
                "each once, outside of the while loop, with a unique name"
            )
        if compiled is None:
            compiled = UserStep(
                step_fn, self._strategy, self._options, self._seed, self._averaged, self._check
            )
            self._steps[name] = (step_fn, compiled)
        key = (name, "" if stream is None else function_name(stream.function))
        if key not in self._traced:
            self._traced.add(key)
            labels = compiled.trace(None if stream is None else stream.iterator)
            self._session.process_group.assert_same("collectives", lambda: labels)
        return compiled

    def _trackables(self, objects: dict[str, Any]) -> dict[str, Any]:
        """Return the objects as they are saved."""
        trackables = {}
        for name, value in objects.items():
            if name in _RESERVED:
                raise ConfigError(f"loop: checkpoint: {name} is saved anyway; choose another name")
            if isinstance(value, SharedOptimizer):
                trackables[name] = value.trackables()
            elif isinstance(
                value, (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer)
            ):
                raise ConfigError(
                    f"loop: checkpoint: {name} is not wrapped; pass what replicator.wrap_optimizer "
                    "returns"
                )
            elif isinstance(value, (tf.Module, tf.Variable)):
                trackables[name] = value
            else:
                raise ConfigError(
                    f"loop: checkpoint: {name} ({type(value).__name__}) must be a model, a wrapped "
                    "optimizer or a tf.Variable"
                )
        return trackables


def _number(value: Any) -> float:
    # A mirrored variable is no number to Python.
    return float(value.numpy() if hasattr(value, "numpy") else value)


def _readable(value: Any) -> Any:
    return value.optimizer if isinstance(value, SharedOptimizer) else value
