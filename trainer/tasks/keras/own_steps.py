"""A model's own `train_step` and `test_step`, run as they are written, on any layout."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.step.captured_updates import CapturedUpdates, note_update
from trainer.engine.graph.step.gradients import Contribution, notes_updates
from trainer.engine.graph.step.lockstep import in_lockstep
from trainer.engine.graph.step.moving_statistics import MovingStatistics
from trainer.engine.graph.step.part_variables import isolate, own_values
from trainer.engine.graph.step.shard_tree import (
    add_beside,
    gradients_in_order,
    keep_apart,
    tree_sum,
)
from trainer.engine.graph.step.shards import cut
from trainer.engine.graph.step.step_options import StepOptions
from trainer.errors import ConfigError
from trainer.protocols import Batch, Metrics, PerExample
from trainer.tasks.keras.autograph import converted
from trainer.tasks.keras.compiled import undecorated
from trainer.tasks.keras.optimizer_proxy import OptimizerProxy, Update, traced_part
from trainer.tasks.keras.part_metrics import isolate_metrics, metrics_of_model, refuse_others

_LIBRARY_FOLDERS = ("site-packages", "trainer")
_AUTOGRAPH_LINE = re.compile(r'^ *File "(.+?)", line (\d+), in .*[^*]\*$', re.MULTILINE)


@dataclass(frozen=True)
class Trial:
    """What a trial of a step has shown.

    Attributes:
        names: the metrics that it returns.
        updates: what it asks its optimizers for, in order.
    """

    names: list[str]
    updates: list[Update]

    def variables(self, optimizer: str) -> list[tf.Variable]:
        """Return what an optimizer updates, each once."""
        own = [v for update in self.updates if update.name == optimizer for v in update.variables]
        return list({id(v): v for v in own}.values())

    def count(self, optimizer: str) -> int:
        """Return how many updates an optimizer makes in a step."""
        return sum(update.name == optimizer for update in self.updates)


class VariableGroup(tf.Module):
    """The variables that one of several optimizers updates, as the engine knows a model.

    Attributes:
        trainable_variables: what it updates.
        non_trainable_variables: none: they are the whole model's.
        layers: none, likewise.
        losses: none, likewise.
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
    """Runs the steps of a model on equal parts of the global batch.

    Its optimizers are replaced by proxies, so that an update is made once, with the mean of the
    gradients of all parts; its metrics by those of one part.

    Attributes:
        proxies: what stands for its optimizers, by the attribute of the model.

    Args:
        model: the model as the engine knows it.
        own: the user's, which is the same of tf_keras.
        library: the Keras that it is of.
    """

    def __init__(self, model: Any, own: Any, library: Any) -> None:
        self._model = model
        self._own = own
        self._library = library
        self.proxies: dict[str, OptimizerProxy] = {}
        self._counts: set[int] = set()  # ids of the variables of metrics
        for name, value in list(vars(own).items()):
            if _is_optimizer(value):
                self.proxies[name] = OptimizerProxy(name, value)
        if not self.proxies:  # it is not compiled: the group `optimizer` decides
            self.proxies["optimizer"] = OptimizerProxy("optimizer", None)
        for name, proxy in self.proxies.items():
            setattr(own, name, proxy)
        _scale_no_losses(library is tf.keras)

    def trial(self, step: str, specs: Mapping[str, Any]) -> Trial:
        """Trace a step once, which updates nothing; return what it does; in the strategy's scope.

        Args:
            step: `train_step` or `test_step`.
            specs: of a batch.

        Raises:
            ConfigError: it cannot be traced.
        """
        trial = Trial([], [])

        def trace(batch: Batch) -> None:
            trial.names.clear()
            trial.updates.clear()

            def at_meeting(arrived: Sequence[Update]) -> list[None]:
                trial.updates.extend(arrived)
                return [None]

            (values,) = in_lockstep(1, lambda _: self._call(step, batch, _zero()), at_meeting)
            trial.names.extend(values)

        strategy = tf.distribute.get_strategy()
        run = tf.function(lambda batch: strategy.run(trace, args=(batch,)), autograph=False)
        run.get_concrete_function(dict(specs))
        refuse_others(self._own, step, trial.names, self._library)
        if self._library is tf.keras:
            self._isolate()
        return trial

    def _isolate(self) -> None:
        """Have each part of a batch keep for itself what it assigns; of tf_keras."""
        self._counts |= isolate_metrics(metrics_of_model(self._own))
        isolate(self._model.variables)

    def train(
        self, batch: Batch, step: Any, optimizers: Mapping[str, Any], names: Sequence[str]
    ) -> Metrics:
        """Run `train_step` on this replica's batch.

        Args:
            batch: the batch.
            step: a `trainer.engine.graph.step.train_step.Step`.
            optimizers: by the attribute that they stand for.
            names: the metrics that are reported.
        """
        options = step.options
        _refuse(options)
        size = int(batch["weight"].shape[0])
        count = (options.shards or step.num_replicas) // step.num_replicas
        weights = [*self._model.trainable_variables, *self._model.non_trainable_variables]
        statistics = MovingStatistics(self._model, None, options, step.num_replicas, noted=True)
        part, enter = cut(batch, count), randomness.split_part(count)
        apart = _Apart(options.shards is not None)

        def compute(number: int) -> tuple[dict[str, tf.Tensor], CapturedUpdates]:
            captured = CapturedUpdates(weights, noted=True, differences=options.adds_differences)
            with (
                # A fresh scope: TensorFlow's optimizer sorts by name, and names are numbered.
                tf.name_scope("shard"),
                enter(number),
                captured.capture(),
                gradients_in_order() if options.shards is not None else nullcontext(),
            ):
                return self._call("train_step", part(number), step.index), captured

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
            )
            return [None] * count

        results = in_lockstep(count, compute, at_meeting)
        return step.end_statistics(statistics, _contribution(results, weights, names, size))

    def evaluate(self, batch: Batch, names: Sequence[str]) -> PerExample:
        """Run `test_step`; return the value of each metric for each example, [B].

        A whole batch is one call. Of one that is filled up each example is evaluated for itself: so
        what it is filled up with cannot count.
        """
        size = int(batch["weight"].shape[0])
        enter = randomness.split_part(size)

        def values(part: Batch) -> tf.Tensor:
            metrics = self._call("test_step", part, _zero())
            return tf.stack([metrics[name] for name in names])

        def one(number: tf.Tensor) -> tf.Tensor:
            example = tf.nest.map_structure(lambda x: x[number][None], batch)
            with enter(number):
                return values(example)

        def each() -> tf.Tensor:
            spec = tf.TensorSpec([len(names)], tf.float32)
            return tf.map_fn(one, tf.range(size), fn_output_signature=spec)

        is_whole = tf.reduce_all(batch["weight"] > 0.0)
        rows = tf.cond(is_whole, lambda: tf.tile(values(batch)[None], [size, 1]), each)
        columns = dict(zip(names, tf.unstack(rows, axis=1), strict=True))
        return columns.pop("loss"), columns

    def _call(self, step: str, batch: Batch, index: tf.Tensor) -> dict[str, tf.Tensor]:
        """Run a step on a part of a batch; return its metrics, scalars."""
        function = converted(undecorated(self._own, step), self._library)
        scope: AbstractContextManager[Any] = nullcontext()
        if notes_updates(self._model):
            scope = self._model.own_step()
        try:
            with traced_part(index), own_values() as assigned, scope:
                returned = function(packed(batch))
                values = _values(step, returned)
            for variable, value, old in assigned.values():
                if id(variable) not in self._counts:
                    note_update(variable, tf.cast(value, tf.float32), tf.cast(old, tf.float32))
            return values
        except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
            if place := _place(error):
                raise ConfigError(f"model: {place}: {_reason(error)}") from error
            raise


def _refuse(options: StepOptions) -> None:
    """Refuse options of the engine's own pass, which a step of a model's own does not go through.

    Raises:
        ConfigError: one is set.
    """
    for is_set, option, fix in (
        (options.jit, "jit (true)", "jit=false"),
        (options.accumulate > 1, f"batch.accumulate ({options.accumulate})", "batch.accumulate=1"),
        (options.loss_scale is not None, "precision (mixed_float16)", "precision=mixed_bfloat16"),
        (options.overlap, "strategy.devices_per_replica", "strategy.devices_per_replica=1"),
        (bool(options.synchronized), "synchronized batch normalization", "batch.shards=null"),
    ):
        if is_set:
            raise ConfigError(
                f"{option} cannot be used with a model's own train_step, which computes its "
                f"gradients itself; add {fix}"
            )


def _contribution(
    results: Sequence[tuple[Mapping[str, tf.Tensor], CapturedUpdates]],
    weights: Sequence[tf.Variable],
    names: Sequence[str],
    size: int,
) -> Contribution:
    """Return what the shards of a replica add to a step, besides their updates.

    Args:
        results: of each shard its metrics, and what it would assign to weights.
        weights: all of the model, moving statistics too.
        names: the metrics that are reported.
        size: examples in the replica's batch.
    """
    updated = sorted({i for _, captured in results for i in captured.updated()})
    rows = [
        [tf.stack([values[name] for name in names]), *map(captured.mean, updated)]
        for values, captured in results
    ]
    total, *updates = tree_sum(rows, _add_all)
    total *= float(size // len(results))
    return Contribution(
        [],
        {name: (total[i], tf.constant(float(size))) for i, name in enumerate(names)},
        [weights[i] for i in updated],
        updates,
        [],
    )


def packed(batch: Batch) -> Any:
    """Return a batch as Keras hands it to a step: features, or with label and sample weight."""
    if "label" not in batch:
        return batch["features"]
    weights = [batch["sample_weight"]] if "sample_weight" in batch else []
    return (batch["features"], batch["label"], *weights)


def _values(step: str, returned: Any) -> dict[str, tf.Tensor]:
    if not isinstance(returned, Mapping):
        raise ConfigError(
            f"model: its {step} returns {type(returned).__name__}; it must return a dict of "
            'metrics, such as {"loss": loss}'
        )
    values = {
        str(name): tf.reduce_mean(tf.cast(tf.convert_to_tensor(value), tf.float32))
        for name, value in returned.items()
    }
    if not values:
        raise ConfigError(f'model: its {step} returns no metrics; return {{"loss": loss}}')
    return {"loss": next(iter(values.values())), **values}


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


def _zero() -> tf.Tensor:
    return tf.constant(0, tf.int64)


def _add_all(left: list[tf.Tensor], right: list[tf.Tensor]) -> list[tf.Tensor]:
    return [add_beside(a, b) for a, b in zip(left, right, strict=True)]


def _is_optimizer(value: Any) -> bool:
    bases = [base for base in type(value).__mro__ if base.__name__ in ("Optimizer", "OptimizerV2")]
    return any(base.__module__.partition(".")[0] in ("tf_keras", "keras") for base in bases)


@functools.cache
def _scale_no_losses(is_tf_keras: bool) -> None:
    """Have Keras divide no loss by the number of replicas, from now on: the engine does."""
    if is_tf_keras:
        from tf_keras.src.utils import losses_utils as module

        # Keras refuses means where there is a strategy, for it would divide by too little.
        reduction = tf.keras.losses.Reduction
        tf.keras.losses.Loss._get_reduction = lambda self: (
            reduction.SUM_OVER_BATCH_SIZE if self.reduction == reduction.AUTO else self.reduction
        )
    else:
        from keras.src.losses import loss as module

        module.unscale_loss_for_distribution = lambda value: value
    module.scale_loss_for_distribution = lambda value: value


def _place(error: BaseException) -> str:
    """Return file and line of the user's code that raised an error, if any did."""
    if converted_lines := _AUTOGRAPH_LINE.findall(str(error)):
        file, line = converted_lines[-1]
        return f"{file}:{line}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        parts = frame.filename.replace("\\", "/").split("/")
        if not any(part in parts for part in _LIBRARY_FOLDERS):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _reason(error: BaseException) -> str:
    """Return what an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if _AUTOGRAPH_LINE.search(str(error)):
        lines = [line for line in lines if re.match(r"\w+(Error|Exception)?: ", line)] or lines
    return lines[0] if lines else repr(error)
