"""The replicator: what a training loop of the user's own is called with.

    with replicator.context():           # variables are made here
        model = ...
        optimizer = replicator.wrap_optimizer(..., model.trainable_variables)
    replicator.checkpoint(model=model, optimizer=optimizer)    # restores, too
    while replicator.step < replicator.total_steps:
        losses = replicator.run(step_fn, input_fn)             # one for each replica

The names are those of TF-Replicator (Buchlovsky et al. 2019); saving, stopping, restarting and
comparing the processes are the engine's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Concatenate, ParamSpec

import tensorflow as tf

from trainer.engine.graph.checks.graph_check import IN_LOOP, GraphCheck
from trainer.engine.graph.placement.step_devices import no_devices_for_variables
from trainer.engine.graph.randomness.random_layers import make_stateless
from trainer.engine.graph.state.train_state import digests, named_variables
from trainer.engine.graph.state.variables import read_from_first_replica, replicated
from trainer.engine.graph.step.step_options import Optimizer, StepOptions
from trainer.engine.graph.step.train_step import Step
from trainer.errors import ConfigError
from trainer.own_loop.session import Session
from trainer.own_loop.streams import InputFn, Stream, Streams, function_name
from trainer.own_loop.user_step import SharedOptimizer, UserStep, current_step, step_seed

_RESERVED = ("step", "streams")

P = ParamSpec("P")


def _in_step(
    collective: Callable[Concatenate[Step, P], Any],
) -> Callable[Concatenate[Replicator, P], Any]:
    """Return a method that calls a collective of the step that is traced."""

    @functools.wraps(collective)
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

    Args:
        options: of the sums over the replicas.
        session: the run that the steps belong to.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        options: StepOptions,
        session: Session,
        seed: int,
    ) -> None:
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
        """Say what is saved, and restore it if there is a checkpoint; call it once, before `run`.

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
        """Make one step: call `step_fn` on every replica, each with an element of its own.

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
        return step_seed()

    def _compiled(self, step_fn: Callable[..., Any], stream: Stream | None) -> UserStep:
        """Return the compiled step function; trace it, and compare it with the other processes'."""
        if self._check is None:
            raise ConfigError("loop: call replicator.checkpoint(...) before replicator.run")
        name = function_name(step_fn)
        function, compiled = self._steps.get(name, (step_fn, None))
        if function is not step_fn:
            raise ConfigError(
                f"loop: two step functions are called {name}, and each is compiled once; define "
                "each once, outside of the while loop, with a name of its own"
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
        """Return the objects as they are saved.

        Raises:
            ConfigError: one cannot be saved.
        """
        trackables = {}
        offset = 0
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
            elif isinstance(value, tf.Module):
                offset += make_stateless(value, offset)
                trackables[name] = value
            elif isinstance(value, tf.Variable):
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
