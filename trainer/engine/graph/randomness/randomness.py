"""Stateless randomness: of (seed, step, draw) or of (seed, epoch, example).

TensorFlow's random functions count inside their kernels, where no checkpoint reaches, so a resumed
run would diverge at its first step. Here what a draw of a step returns is a function of the seed,
the step, and how many draws came before it in the step: there is nothing to save. It is drawn for
the global batch, and a replica or a micro-batch gets its slice (see `draws`), so the numbers do not
depend on how the batch is cut.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


@dataclass
class BatchPart:
    """A part of a step's global batch, while the computation on it is traced.

    Attributes:
        seed: returns the step's seed, [2] int64. Called by each draw, in the graph that it is
            traced in, and never by a model without randomness.
        size: examples in the part; all parts of the batch have as many. 0: they are of no global
            batch, as in a loop of the user's own.
        number: how many such parts of the global batch come before this one.
        num_parts: how many such parts the global batch has.
        num_draws: how many draws have been traced in this step.
        place: the graph that was traced when the part was entered, and its name scope.
    """

    seed: Callable[[], tf.Tensor]
    size: int
    number: int | tf.Tensor
    num_parts: int = 1
    num_draws: int = 0
    place: tuple[Any, str] = field(default_factory=lambda: _place())

    def seed_here(self) -> tf.Tensor:
        """Return the step's seed; in a loop within the step, one for each iteration."""
        return fold_seed(self.seed(), *_loops_within(self.place[0])[0])

    def count(self) -> int:
        """Return how many draws came before in this step, and count this one."""
        self.num_draws += 1
        return self.num_draws - 1


def current_part() -> BatchPart | None:
    """Return the part that random functions draw for; None: they draw as TensorFlow does.

    That is so in `tf.vectorized_map`, which traces what it does to a row once for all of them.
    """
    part: BatchPart | None = getattr(_current, "part", None)
    if part is None:
        return None
    graph, scope = part.place
    if "loop_body" in _place()[1].removeprefix(scope).split("/"):
        return None
    function = _loops_within(graph)[1]
    return part if function is None else _part_in_calls(function, part)


def _part_in_calls(function: FuncGraph, part: BatchPart) -> BatchPart:
    """Return the part as a `tf.function` that is traced within the step sees it.

    One trace serves several calls, maybe of several parts. So the seed and the number of the part
    are inputs of the function, and each call gets its own.
    """

    def of_call() -> list[tf.Tensor]:
        caller = current_part()
        if caller is None:  # called outside the step, of which nothing has to be repeated
            return [tf.random.uniform([3], maxval=tf.int64.max, dtype=tf.int64)]
        seed = fold_seed(caller.seed_here(), caller.count())
        return [tf.concat([seed, [tf.cast(caller.number, tf.int64)]], axis=0)]

    if not hasattr(function, "batch_part"):
        key = "batch_part"
        given = function.capture_call_time_value(list, tf.TensorSpec([3], tf.int64), key)
        # TensorFlow itself would draw once for all calls in the step.
        function.function_captures.by_ref_external[key] = of_call
        function.batch_part = replace(
            part, seed=lambda: given[:2], number=given[2], num_draws=0, place=(function, "")
        )
    own: BatchPart = function.batch_part
    return own


def in_step() -> bool:
    """Return whether a step is traced, also where random functions cannot draw for its part."""
    return getattr(_current, "part", None) is not None


def next_seed() -> tf.Tensor:
    """Return a seed, [2] int64, that no other draw of the step and no other part has."""
    part = current_part()
    assert part is not None
    return fold_seed(part.seed_here(), part.count(), part.number)


@contextmanager
def batch_part(part: BatchPart) -> Iterator[None]:
    """Draw the random numbers of what is traced inside for this part of the global batch."""
    outer = getattr(_current, "part", None)
    part.place = _place()
    _current.part = part
    try:
        yield
    finally:
        _current.part = outer


def traced_here() -> AbstractContextManager[None]:
    """Draw for the current part in the function that is traced now, which runs but once."""
    outer: BatchPart | None = getattr(_current, "part", None)
    return nullcontext() if outer is None else batch_part(outer)


def evaluated_part(
    batch: tf.Tensor, context: tf.distribute.ReplicaContext, size: int
) -> AbstractContextManager[None]:
    """Draw for this replica's part, of `size` examples, of the evaluation's batch number `batch`.

    The whole split is taken as one batch, so what is drawn depends on the example alone.
    """
    count = context.num_replicas_in_sync
    number = _plus(_times(batch, count), tf.cast(context.replica_id_in_sync_group, tf.int64))
    seed = tf.zeros([2], tf.int64)
    return batch_part(BatchPart(lambda: seed, size, number, num_parts=count))


def _place() -> tuple[Any, str]:
    """Return the graph that is traced, and its name scope."""
    graph = tf.compat.v1.get_default_graph()
    return graph, graph.get_name_scope()


def _loops_within(entered: Any) -> tuple[list[tf.Tensor], FuncGraph | None]:
    """Return the counters of the loops around what is traced, in a graph or the function within.

    That function is returned too: the innermost `tf.function` that is traced, or None.
    """
    graph = tf.compat.v1.get_default_graph()
    counters = []
    while graph is not entered:
        if isinstance(graph, WhileBodyFuncGraph | WhileCondFuncGraph):
            counters.append(graph.inputs[0])
        elif not isinstance(graph, CondBranchFuncGraph):
            return counters, graph if isinstance(graph, FuncGraph) else None
        graph = graph.outer_graph
    return counters, None


@contextmanager
def part_of_size(size: int) -> Iterator[None]:
    """Draw for as many examples as the current part has."""
    outer, entered = current_part(), getattr(_current, "part", None)
    if outer is None:
        yield
        return
    _current.part = part = replace(outer, size=size)
    try:
        yield
    finally:
        _current.part, outer.num_draws = entered, part.num_draws


def repeatable() -> AbstractContextManager[None]:
    """Draw what is traced inside without counting it: what comes after draws the same again."""
    outer: BatchPart | None = getattr(_current, "part", None)
    return nullcontext() if outer is None else batch_part(replace(outer))


def split_part(count: int) -> Callable[[int | tf.Tensor], AbstractContextManager[None]]:
    """Cut the current part into `count` equal ones; return a function that enters part i."""
    outer: BatchPart | None = getattr(_current, "part", None)
    if outer is None:
        return lambda number: nullcontext()
    num_draws = outer.num_draws

    @contextmanager
    def enter(number: int | tf.Tensor) -> Iterator[None]:
        part = replace(
            outer,
            size=outer.size // count,
            number=_plus(_times(outer.number, count), number),
            num_parts=outer.num_parts * count,
            num_draws=num_draws,
        )
        with batch_part(part):
            yield
        outer.num_draws = part.num_draws

    return enter


def _times(number: int | tf.Tensor, factor: int) -> int | tf.Tensor:
    static = tf.get_static_value(number)
    return tf.cast(number, tf.int64) * factor if static is None else int(static) * factor


def _plus(number: int | tf.Tensor, other: int | tf.Tensor) -> int | tf.Tensor:
    if isinstance(number, int) and isinstance(other, int):
        return number + other
    return tf.cast(number, tf.int64) + tf.cast(other, tf.int64)


def fold_seed(seed: int | tf.Tensor, *parts: int | tf.Tensor) -> tf.Tensor:
    """Return a seed, [2] int64, that depends on all of `parts`, integer scalars."""
    folded = (
        tf.constant([seed & 0xFFFFFFFF, seed >> 32], tf.int64) if isinstance(seed, int) else seed
    )
    for part in parts:
        folded = tf.random.experimental.stateless_fold_in(folded, tf.cast(part, tf.int64))
    return folded


def uniform(seed: int, epochs: tf.Tensor, indices: tf.Tensor, num_draws: int) -> tf.Tensor:
    """Draw [B, num_draws] float32 in [0, 1) by seed, epochs and examples, [B] int64 each.

    A counter through the finalizer of SplitMix64 (Steele, Lea and Flood 2014), vectorized over
    examples.
    """
    key = _mix(
        _mix(_mix(tf.fill(tf.shape(indices), tf.constant(seed, tf.uint64))) + _u64(epochs))
        + _u64(indices)
    )
    counter = _u64(tf.range(1, num_draws + 1, dtype=tf.int64))
    draws = _mix(key[:, None] + _GOLDEN * counter[None, :])
    # The top 24 bits fill a float32's significand exactly.
    return tf.cast(tf.bitwise.right_shift(draws, tf.constant(40, tf.uint64)), tf.float32) * (
        2.0**-24
    )


def normal_of(numbers: tf.Tensor, size: int) -> tf.Tensor:
    """Return a standard normal vector, [B, size] float32, for each number, [B] int64.

    As Box and Muller (1958) make it.
    """
    half = -(-size // 2)
    draws = uniform(0, tf.zeros_like(numbers), numbers, 2 * half)
    # 1 - u is in (0, 1]: its logarithm is finite.
    radius = tf.sqrt(-2.0 * tf.math.log(1.0 - draws[:, :half]))
    angle = 2.0 * math.pi * draws[:, half:]
    return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)[:, :size]


_GOLDEN = 0x9E3779B97F4A7C15


def _u64(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.uint64)


def _mix(x: tf.Tensor) -> tf.Tensor:
    def xor_shift(x: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(bits, tf.uint64)))

    x = xor_shift(x + tf.constant(_GOLDEN, tf.uint64), 30) * tf.constant(
        0xBF58476D1CE4E5B9, tf.uint64
    )
    x = xor_shift(x, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return xor_shift(x, 31)
