"""How a batch's numbers follow from those of its equal shards: as a mean, a sum, or not at all.

Keras' losses are means over the examples of a batch, metrics add up what they count, and a program
may do otherwise: a Dice loss, a loss that is a sum, a metric that is one number for the batch. So a
program is tried before the training, on some training examples and on both halves of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, split_part
from trainer.engine.graph.step.assignments import pass_values
from trainer.errors import ConfigError
from trainer.protocols import Batch
from trainer.tasks.keras.program import MetricStates, Pass, num_examples
from trainer.tasks.keras.task_loss import masks_of, rows_times, with_attributes

Kind: TypeAlias = Literal["mean", "sum", "neither", "carried"]

_EXAMPLES = 32
_SHUFFLES = 4
_FACTORS = "trial_factors"
_TOLERANCE = 1e-4
_LOW_PRECISION = 5e-2
"""How far apart rounding may move numbers, of their size; the second with 16 bits."""


@dataclass(frozen=True)
class Kinds:
    """How the numbers of a batch follow from those of equal shards of it.

    Attributes:
        objective: what is derived: the loss, or the sum of one that is not reduced.
        logs: what is returned in addition to the values of metrics.
        states: the variables of the metrics, in order; empty: they are sums. What is carried
            depends on what the variable held before, such as a maximum.
        updates: the gradients that a step of the model's own updates with, in order.
    """

    loss: Kind = "mean"
    objective: Kind = "mean"
    logs: Mapping[str, Kind] = field(default_factory=dict)
    states: Sequence[Kind] = ()
    updates: Sequence[Kind] = ()

    @property
    def needs_whole(self) -> bool:
        """Whether something can be computed of a whole batch alone."""
        kinds = {self.loss, self.objective, *self.logs.values(), *self.states, *self.updates}
        return not kinds.isdisjoint(("neither", "carried"))

    def describe(self, states: MetricStates) -> str:
        """Return the names of what needs a whole batch."""
        names = ["the gradients"] if "neither" in self.updates else []
        names += ["the loss"] if self.loss == "neither" else []
        names += [name for name, kind in self.logs.items() if kind == "neither"]
        names += [
            v.name for v, k in zip(states.variables, self.states, strict=True) if k == "neither"
        ]
        return ", ".join(names)


def kinds_of(
    run: Callable[[Batch], tuple[Pass, Sequence[list[tf.Tensor]]]],
    model: Any,
    moving: Sequence[tf.Variable],
    examples: Batch,
    states: MetricStates,
    logs: Sequence[str],
) -> Kinds:
    """Try a program on examples and on their halves; return what follows from what.

    In the trial, batch normalization takes its moving statistics: with those of the batch every
    loss would depend on all examples of it, which is what a user of several devices accepts.

    Args:
        run: runs the program on a batch, in replica context; returns what it made of it, and the
            gradients of each update.
        moving: variables that the program assigns to; in the trial they do not change.
        examples: training examples, [2 n, ...].
        logs: the names of what is reported in addition to metrics.

    Raises:
        ConfigError: the program fails on so many examples.
    """
    # Halves that are as different as they can be, and halves that are similar: a masked mean of one
    # half without any example that counts would be the sum of both. Others by chance: a mean over
    # what counts looks like one over all where both halves have as much that counts.
    orders = _sorted_by_labels(examples)
    orders.append(np.concatenate([orders[0][::2], orders[0][1::2]]))
    count = num_examples(examples)
    orders += [np.random.default_rng(i).permutation(count) for i in range(_SHUFFLES)]
    batches = [_in_order(examples, order) for order in orders]
    kinds = [_kinds(tried, states, logs) for tried in _run(run, model, moving, batches, states)]
    return _by_metric(_agreed(kinds), states.groups)


def _kinds(made: Sequence[dict[str, Any]], states: MetricStates, logs: Sequence[str]) -> Kinds:
    """Return what follows from what a program made of a batch and of its halves."""
    tried, after = made[:3], made[3:]

    def kind(numbers: Sequence[Any], default: Kind) -> Kind:
        return _kind([np.asarray(x, np.float64) for x in numbers], default)

    held = list(zip(*(states.split(np.asarray(x["states"])) for x in tried), strict=True))
    kinds: list[Kind] = [kind(numbers, "sum") for numbers in held]
    for later in after:
        for i, total in enumerate(states.split(np.asarray(later["states"]))):
            if kind([total, *held[i][1:]], "sum") != "sum":
                kinds[i] = "carried"
    updates = zip(*(x["updates"] for x in tried), strict=True)
    return Kinds(
        kind([x["loss"] for x in tried], "mean"),
        kind([x["objective"] for x in tried], "mean"),
        {name: kind([x["logs"][name] for x in tried], "mean") for name in logs},
        kinds,
        [
            kind([np.concatenate([np.ravel(g) for g in x]) for x in gradients], "mean")
            for gradients in updates
        ],
    )


def _agreed(trials: Sequence[Kinds]) -> Kinds:
    """Return the kinds that all trials have in common; else neither."""

    def common(kinds: Iterable[Kind]) -> Kind:
        found = set(kinds)
        if "carried" in found:
            return "carried"
        return found.pop() if len(found) == 1 else "neither"

    return Kinds(
        common(x.loss for x in trials),
        common(x.objective for x in trials),
        {name: common(x.logs[name] for x in trials) for name in trials[0].logs},
        list(map(common, zip(*(x.states for x in trials), strict=True))),
        list(map(common, zip(*(x.updates for x in trials), strict=True))),
    )


def _by_metric(kinds: Kinds, groups: Sequence[Sequence[int]]) -> Kinds:
    """Return kinds in which a metric needs the whole batch if its variables are of several.

    One that was 0 in all trials looks like a sum, though the count that divides it is no sum.
    """
    of_states = list(kinds.states)
    for group in groups:
        if {of_states[i] for i in group} == {"mean", "sum"}:
            for i in group:
                of_states[i] = "neither"
    return replace(kinds, states=of_states)


def trial_batch(examples: Callable[[int], Batch], global_size: int) -> Batch:
    """Return training examples for a trial, an even number, of what `examples(count)` returns."""
    batch = examples(min(global_size, _EXAMPLES))
    count = num_examples(batch) // 2 * 2
    factors = np.random.default_rng(0).uniform(0.25, 1.0, count).astype(np.float32)
    return {**_in_order(batch, np.arange(count)), _FACTORS: factors}


def spread(outputs: Any, batch: Batch) -> Any:
    """Return the outputs for a batch of a trial, each example's times its own factor.

    What a new model predicts is nearly the same for all, so the root of a mean looks like a mean.
    """
    flat = tf.nest.flatten(outputs)
    factors = batch[_FACTORS]

    def one(output: Any) -> Any:
        is_float = isinstance(output, tf.Tensor) and output.dtype.is_floating
        if not is_float or not output.shape.rank or output.shape[0] not in (None, factors.shape[0]):
            return output
        return tf.cast(rows_times(factors, output), output.dtype)

    spread = with_attributes(list(map(one, flat)), masks_of(flat), {})
    return tf.nest.pack_sequence_as(outputs, spread)


def _sorted_by_labels(batch: Batch) -> list[np.ndarray]:
    """Return the orders of a batch's examples by the sum and the size of each of their labels."""
    labels = [np.asarray(x) for x in tf.nest.flatten(batch.get("label", batch["features"]))]
    rows = [x.reshape(len(x), -1).astype(np.float64) for x in labels if x.dtype.kind in "iufb"]
    keys = [key for x in rows for key in (x.sum(axis=1), np.square(x).sum(axis=1))]
    return [np.argsort(key, kind="stable") for key in keys] or [np.arange(num_examples(batch))]


def _halves(batch: Batch) -> list[Batch]:
    size = num_examples(batch) // 2
    both = (slice(0, size), slice(size, 2 * size))
    return [tf.nest.map_structure(lambda x, rows=rows: x[rows], dict(batch)) for rows in both]


def _in_order(batch: Batch, order: np.ndarray) -> Batch:
    return tf.nest.map_structure(lambda x: tf.gather(x, order), dict(batch))


def _run(
    run: Callable[[Batch], tuple[Pass, Sequence[list[tf.Tensor]]]],
    model: Any,
    moving: Sequence[tf.Variable],
    batches: Sequence[Batch],
    states: MetricStates,
) -> list[list[dict[str, Any]]]:
    """Return what a program makes of each batch and of its halves, with the same random numbers.

    With metrics of the user's classes also what it makes of the second half after the first.
    """
    strategy = tf.distribute.get_strategy()
    own = getattr(model, "keras_model", model)  # of Keras 3
    layers = [
        layer
        for layer in own._flatten_layers()
        if layer.trainable
        and any("BatchNormalization" in base.__name__ for base in type(layer).__mro__)
    ]
    size = num_examples(batches[0])

    def in_replica(examples: Batch, halves: Sequence[Batch]) -> list[dict[str, Any]]:
        def one(batch: Batch) -> dict[str, Any]:
            with pass_values(model, moving):
                made, updates = run(batch)
            return {**vars(made), "updates": list(updates)}

        with batch_part(BatchPart(lambda: tf.zeros([2], tf.int64), size=size, number=0)):
            enter = split_part(2)
            results = []
            for number, half in enumerate(halves):
                with enter(number):
                    results.append(one(half))
            if states.has_own:
                with enter(1), states.beginning(results[0]["states"]):
                    results.append(one(halves[1]))
        with batch_part(BatchPart(lambda: tf.zeros([2], tf.int64), size=size, number=0)):
            return [one(examples), *results]

    @tf.function(autograph=False)
    def traced(examples: Batch, halves: Sequence[Batch]) -> Any:
        return tf.nest.map_structure(
            lambda x: strategy.experimental_local_results(x)[0],
            strategy.run(in_replica, args=(examples, halves)),
        )

    uses_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for layer in layers:
        layer.trainable = False
    try:
        results = [traced(dict(batch), _halves(batch)) for batch in batches]
    except tf.errors.OpError as error:
        raise ConfigError(f"model: {str(error).splitlines()[0]}") from error
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(uses_tf32)
        for layer in layers:
            layer.trainable = True
    return results


def _kind(numbers: Sequence[np.ndarray], default: Kind) -> Kind:
    is_precise = tf.keras.mixed_precision.global_policy().name == "float32"
    tolerance = _TOLERANCE if is_precise else _LOW_PRECISION
    whole, first, second = numbers
    if not all(np.isfinite(x).all() for x in numbers):
        return default
    scale = max(float(np.abs(x).max(initial=0.0)) for x in numbers)
    results: dict[Kind, np.ndarray] = {"mean": (first + second) / 2.0, "sum": first + second}
    order: list[Kind] = [default, "sum" if default == "mean" else "mean"]
    for kind in order:
        if np.abs(whole - results[kind]).max(initial=0.0) <= tolerance * scale:
            return kind
    return "neither"
