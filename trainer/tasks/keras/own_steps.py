"""A model's own `train_step`, run as it is written, on equal shards of the global batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import tensorflow as tf

from trainer.engine.graph.library_patches import gradients_added_by
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.step.accumulation import Contribution, cut
from trainer.engine.graph.step.assignments import (
    Assigned,
    MovingStatistics,
    noted_values,
    value_to_sum,
)
from trainer.engine.graph.step.lockstep import in_lockstep
from trainer.engine.graph.step.shard_tree import add, add_all, keep_apart, tree_sum
from trainer.engine.graph.step.step_options import StepOptions
from trainer.errors import ConfigError
from trainer.protocols import STATES, Batch
from trainer.tasks.keras.optimizers import OptimizerProxy, Update
from trainer.tasks.keras.program import Pass, Program
from trainer.tasks.keras.trial import Kinds
from trainer.tasks.keras.user_model import undecorated


class VariableGroup(tf.Module):
    """The variables that one of several optimizers updates, in the form of a model.

    All that is not updated is the whole model's.
    """

    non_trainable_variables: Sequence[tf.Variable] = ()
    _trainable_variables: Sequence[tf.Variable] = ()
    _non_trainable_variables: Sequence[tf.Variable] = ()
    layers: Sequence[Any] = ()
    losses: Sequence[tf.Tensor] = ()

    def __init__(self, variables: Sequence[tf.Variable], name: str) -> None:
        super().__init__(name=name)
        self._variables = list(variables)

    def _flatten_layers(self, **options: Any) -> Sequence[Any]:
        return ()

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        return self._variables

    @property
    def variables(self) -> list[tf.Variable]:
        return self._variables


class OwnSteps:
    """Runs the `train_step` of a model on equal shards of the global batch.

    Its optimizers are replaced by proxies, so that an update is made once, with the gradients of
    all shards.

    Args:
        weighted: returns a batch with the weights of its classes.
    """

    def __init__(
        self, program: Program, optimizer: Any, weighted: Callable[[Batch], Batch]
    ) -> None:
        self._program = program
        self._weighted = weighted
        own = program.own
        self.proxies = {
            name: OptimizerProxy(name, value)
            for name, value in list(vars(own).items())
            if _is_optimizer(value)
        }
        if not self.proxies:
            self.proxies["optimizer"] = OptimizerProxy("optimizer", optimizer)
        for name, proxy in self.proxies.items():
            setattr(own, name, proxy)
            if proxy.original is not None:
                _replace(undecorated(own, "train_step"), proxy)

    def trial(self, specs: Mapping[str, Any]) -> tuple[list[str], list[Update]]:
        """Trace the step once, without updates; return the names of its values, and its updates.

        Raises:
            ConfigError: it cannot be traced.
        """
        updates: list[Update] = []

        def run(batch: Batch) -> Pass:
            made, found = self._alone(batch)
            updates[:] = found
            return made

        return names_of(run, specs), updates

    def tried(self, batch: Batch) -> tuple[Pass, list[list[tf.Tensor]]]:
        """Run the step on a batch, which updates nothing; return also the updates' gradients."""
        made, updates = self._alone(batch)
        return made, [update.gradients for update in updates]

    def _alone(self, batch: Batch) -> tuple[Pass, list[Update]]:
        updates: list[Update] = []

        def at_meeting(arrived: Sequence[Update]) -> list[None]:
            updates.extend(arrived)
            return [None]

        batch, index = self._weighted(batch), tf.constant(0, tf.int64)
        run = lambda _: self._program.step("train_step", batch, index)  # noqa: E731
        (made,) = in_lockstep(1, run, at_meeting)
        return made, updates

    def train(self, batch: Batch, step: Any, optimizers: Mapping[str, Any], kinds: Kinds) -> Pass:
        """Run `train_step` on this replica's batch; return what the global batch has made."""
        options = step.options
        _refuse(options)
        model = self._program.model
        count = (options.shards or step.num_replicas) // step.num_replicas
        weights = [*model.trainable_variables, *model.non_trainable_variables]
        statistics = MovingStatistics(model, options, step.num_replicas, noted=True)
        shard, enter = cut(batch, count), randomness.split_part(count)
        apart = _Apart(options.shards is not None)
        update_kinds = iter(kinds.updates)

        def compute(number: int) -> tuple[Pass, dict[int, Assigned]]:
            with (
                # A fresh scope: TensorFlow's optimizer sorts by name, and names are numbered.
                tf.name_scope("shard"),
                enter(number),
                noted_values(weights) as noted,
                gradients_added_by(add),
            ):
                return self._program.step("train_step", shard(number), step.index), noted

        def at_meeting(arrived: Sequence[Update]) -> list[None]:
            apart.keep()
            first = arrived[0]
            if any(update.name != first.name for update in arrived):
                raise ConfigError("model: its train_step updates in another order in each shard")
            step.update_together(
                optimizers[first.name],
                first.variables,
                [update.gradients for update in arrived],
                [update.loss for update in arrived],
                is_sum=next(update_kinds, "mean") == "sum",
            )
            return [None] * count

        results = in_lockstep(count, compute, at_meeting)
        contribution = _contribution(
            results, weights, list(kinds.logs), differences=options.adds_differences
        )
        sums = step.end_statistics(statistics, contribution)
        return self._of_whole(results[0][0], sums, kinds, count * step.num_replicas)

    def _of_whole(self, first: Pass, sums: Mapping[str, Any], kinds: Kinds, count: int) -> Pass:
        """Return what the global batch has made, from the sums over its `count` shards."""

        def whole(value: tf.Tensor, kind: str) -> tf.Tensor:
            return value / count if kind == "mean" and count > 1 else value

        states = sums[STATES][0]
        if "mean" in kinds.states:
            factors = [1.0 / count if kind == "mean" else 1.0 for kind in kinds.states]
            states *= self._program.states.spread(factors)
        logs = {name: whole(sums[name][0], kind) for name, kind in kinds.logs.items()}
        return replace(first, loss=whole(sums["loss"][0], kinds.loss), logs=logs, states=states)


def names_of(run: Callable[[Batch], Pass], specs: Mapping[str, Any]) -> list[str]:
    """Trace a step once, in the strategy's scope; return the names of the values it returns."""
    names: list[str] = []

    def trace(batch: Batch) -> None:
        names[:] = run(batch).logs

    strategy = tf.distribute.get_strategy()
    traced = tf.function(lambda batch: strategy.run(trace, args=(batch,)), autograph=False)
    traced.get_concrete_function(dict(specs))
    return names


def _refuse(options: StepOptions) -> None:
    """Refuse options of the engine's own pass, which a model's own step does not go through."""
    for is_set, option, fix in (
        (options.jit, "jit (true)", "jit=false"),
        (options.accumulate > 1, f"batch.accumulate ({options.accumulate})", "batch.accumulate=1"),
        (options.loss_scale is not None, "precision (mixed_float16)", "precision=mixed_bfloat16"),
        (options.overlap, "strategy.devices_per_replica", "strategy.devices_per_replica=1"),
    ):
        if is_set:
            raise ConfigError(
                f"{option} cannot be used with a model's own train_step, which computes its "
                f"gradients itself; add {fix}"
            )


def _contribution(
    results: Sequence[tuple[Pass, dict[int, Assigned]]],
    weights: Sequence[tf.Variable],
    logs: Sequence[str],
    *,
    differences: bool,
) -> Contribution:
    """Return what the shards of a replica add to a step, in addition to their updates: all as sums.

    Args:
        results: of each shard what it made, and what it would assign to weights.
        weights: all of the model, moving statistics too.
    """
    updated = [v for v in weights if any(id(v) in noted for _, noted in results)]

    def row(made: Pass, noted: Mapping[int, Assigned]) -> list[tf.Tensor]:
        values = [
            value_to_sum(v, noted.get(id(v)), notes=True, differences=differences) for v in updated
        ]
        return [made.loss, made.states, *(made.logs[x] for x in logs), *values]

    rows = [row(*result) for result in results]
    loss, states, *others = tree_sum(rows, add_all)
    zero = tf.zeros([])
    sums = {
        "loss": (loss, zero),
        **{name: (value, zero) for name, value in zip(logs, others, strict=False)},
        STATES: (states, tf.zeros([0])),
    }
    return Contribution([], sums, updated, others[len(logs) :])


class _Apart:
    """Keeps kernels apart that a layout could join; see `shard_tree.keep_apart`."""

    def __init__(self, is_needed: bool) -> None:
        self._is_needed = is_needed
        self._graph = tf.compat.v1.get_default_graph()
        self._count = len(self._graph.get_operations()) if is_needed else 0

    def keep(self) -> None:
        """Do so with what has been traced since the last call."""
        if self._is_needed:
            keep_apart(self._graph.get_operations()[self._count :])
            self._count = len(self._graph.get_operations())


def _replace(step: Any, proxy: OptimizerProxy) -> None:
    """Have a step that uses an optimizer as a variable of its module or function use the proxy."""
    function = getattr(step, "__func__", step)
    names = function.__globals__
    names.update({name: proxy for name, value in names.items() if value is proxy.original})
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            if cell.cell_contents is proxy.original:
                cell.cell_contents = proxy


def _is_optimizer(value: Any) -> bool:
    bases = [base for base in type(value).__mro__ if base.__name__ in ("Optimizer", "OptimizerV2")]
    return any(base.__module__.partition(".")[0] in ("tf_keras", "keras") for base in bases)
