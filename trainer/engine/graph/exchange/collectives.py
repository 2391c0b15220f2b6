"""Collectives: reduce, gather or broadcast any nest of tensors over the replicas inside a step.

All of them are one primitive: the sum over the replicas of one flat buffer for each type. To
gather is to sum what each replica has put into its own row, to broadcast is to sum what only
one has put in, to scatter is to keep a part of the sum. All are differentiable. The sum's gradient
is itself a sum: the loss is understood to be that of all replicas together.
"""

from __future__ import annotations

import pprint
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

from trainer.annotations import OneOf
from trainer.config.options import constraints
from trainer.engine.graph.placement.step_devices import beside, numbers_of, on_own_device
from trainer.errors import ConfigError

_OPS = OneOf("sum", "mean", "min", "max")
_SPARSE = (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)
_ENGINE = ("trainer.engine.", "trainer.own_loop.")
"""Frames of the modules in these packages are not the code that makes a collective."""
UNSAVED = "unsaved"
"""A name scope of operations that change variables in no checkpoint."""
_Sums = TypeVar("_Sums")
_END = "the end of the step", ""
_SHOWN = 160  # characters of a nest in a message


def packed(
    tensors: Sequence[tf.Tensor], exchange: Callable[[tf.Tensor], tf.Tensor]
) -> list[tf.Tensor]:
    """Pass tensors through `exchange` as one flat buffer for each type.

    So there is one collective for each type, for any number of tensors; if a replica has
    several devices, one for each of them.
    """
    results = list(tensors)
    kinds = [(x.dtype, number) for x, number in zip(tensors, numbers_of(tensors), strict=True)]
    for kind in dict.fromkeys(kinds):
        indices = [i for i, other in enumerate(kinds) if other == kind]
        with beside(tensors[indices[0]]):
            flat = exchange(tf.concat([tf.reshape(tensors[i], [-1]) for i in indices], axis=0))
            parts = tf.split(flat, [_num_elements(tensors[i]) for i in indices])
            for i, part in zip(indices, parts, strict=True):
                results[i] = reshaped(part, [], tensors[i])
    return results


def reshaped(x: tf.Tensor, first: Sequence[int], like: tf.Tensor, start: int = 0) -> tf.Tensor:
    """Reshape to the sizes `first`, then those of `like` from `start` on, which may be unknown."""
    rest = like.shape[start:]
    if rest.is_fully_defined():
        return tf.reshape(x, [*first, *rest])
    sizes = tf.concat([tf.constant(first, tf.int32), tf.shape(like)[start:]], axis=0)
    return tf.ensure_shape(tf.reshape(x, sizes), [*first, *rest])


def _num_elements(x: tf.Tensor) -> Any:
    return x.shape.num_elements() if x.shape.is_fully_defined() else tf.size(x)


def flat_sum(
    replica: tf.distribute.ReplicaContext, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Sum tensors of static shapes over the replicas, each in its own type."""
    if replica.num_replicas_in_sync == 1:
        return list(tensors)
    return packed(tensors, lambda flat: replica.all_reduce(tf.distribute.ReduceOp.SUM, flat))


Made: TypeAlias = tuple[str, str]
"""A collective: what is made of which nest, and the file and line of the code that makes it."""


class CollectiveLog:
    """The collectives of one trace of the step, in order.

    Every replica must make the same collectives in the same order, else they wait for one another
    or add up what does not belong together. The replicas of this process are compared while they
    are traced, one after the other; processes compare their `labels`.
    """

    def __init__(self) -> None:
        self._made: list[Made] = []
        self._counts: dict[int | None, int] = {}

    def record(self, replica: int | None, made: Made) -> None:
        """Record that a replica makes a collective; its number is None where one trace is for all.

        Raises:
            ValueError: another replica made a different one at this point.
        """
        number = self._counts[replica] = self._counts.get(replica, 0) + 1
        if number > len(self._made):
            self._made.append(made)
            return
        other = self._made[number - 1]
        if other[0] != made[0]:
            pairs = enumerate(zip(other[0], made[0], strict=False))
            start = next((i for i, (a, b) in pairs if a != b), 0)
            raise ValueError(
                f"collective {number} of the step differs: replica {replica} has "
                f"{_text(made, start)}, another {_text(other, start)}; all must make the same, in "
                "the same order and with the same shapes"
            )

    def end(self, replica: int | None) -> None:
        """Record that a replica makes no more collectives."""
        self.record(replica, _END)

    def labels(self) -> dict[str, str]:
        """Return label -> what must be the same in all processes: not the place in the code."""
        return {f"{i}. {_text(made)}": made[0] for i, made in enumerate(self._made, 1)}


def _text(made: Made, start: int = 0) -> str:
    """Return a collective for a message; of a long nest what is at `start`."""
    operation, place = made
    if len(operation) > _SHOWN:
        begin = max(0, min(start, len(operation)) - _SHOWN // 2)
        operation = f"{'... ' * (begin > 0)}{operation[begin : begin + _SHOWN]} ..."
    return f"{operation} at {place}" if place else operation


class ExchangeTimer:
    """Adds up the seconds between the moment that tensors are ready and that of their sum.

    It changes no value: clocks are read next to the reduction, and nothing waits for them. On a GPU
    an operation counts as ready when it has been queued, so it is for processes without.
    """

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        # Of this process alone, and in no checkpoint.
        self._secs = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="exchange_secs")

    def measure(self, tensors: Sequence[tf.Tensor], exchange: Callable[[], _Sums]) -> _Sums:
        """Return what `exchange` returns, a nest of tensors that needs all of `tensors`."""
        with tf.control_dependencies(tensors):
            ready = tf.timestamp()
        sums = exchange()
        with tf.control_dependencies(tf.nest.flatten(sums)):
            arrived = tf.timestamp()
        with tf.name_scope(UNSAVED):
            self._secs.assign_add(arrived - ready, read_value=False)
        return sums

    def read(self) -> float:
        """Return the seconds so far, the mean over the replicas of this process."""
        return float(self._secs.numpy()) / self._num_replicas


class Collectives:
    """One replica's collectives in one step.

    Created in replica context, for each replica while the step is traced.

    They may be anywhere in a step, also within a model, but not within a tf.function,
    tf.while_loop or tf.cond. All replicas must call the same ones, in the same order and with the
    same shapes, which must be static. They are differentiable, with respect to the sum of all
    replicas' losses. Where batch.accumulate or batch.shards cut the batch, a loss function may not
    communicate, and with batch.shards neither may `eval_step`.
    """

    def __init__(self, log: CollectiveLog) -> None:
        self._log = log
        self._context = tf.distribute.get_replica_context()
        self.num_replicas: int = self._context.num_replicas_in_sync
        number = tf.get_static_value(self._context.replica_id_in_sync_group)
        self._number = None if number is None else int(number)
        self.replica: int | tf.Tensor = (
            self._context.replica_id_in_sync_group if number is None else int(number)
        )
        self._graph = tf.compat.v1.get_default_graph()
        self._is_part = False

    @contextmanager
    def on_part(self, is_part: bool) -> Iterator[None]:
        """Refuse collectives inside, where the batch is only a part of what the options cut."""
        self._is_part = is_part
        try:
            yield
        finally:
            self._is_part = False

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        return self._reduced("all_reduce", value, op)

    def map_reduce(self, fn: Callable[[Any], Any], value: Any, op: str = "sum") -> Any:
        return self._reduced("map_reduce", fn(value), op)

    def reduce_scatter(self, value: Any, op: str = "sum", axis: int = 0) -> Any:
        name = f"reduce_scatter({op}, axis={axis})"
        total = self._reduced("reduce_scatter", value, op, f", axis={axis}")
        return tf.nest.map_structure(lambda x: self._own_part(name, x, axis), total)

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        return self._gathered("all_gather", value, axis)

    def map_gather(self, fn: Callable[[Any], Any], value: Any, axis: int = 0) -> Any:
        return self._gathered("map_gather", fn(value), axis)

    def gather_rows(self, value: Any) -> Any:
        """Return the examples of all replicas, in their order, of a nest of [B, ...] tensors.

        A length may differ from batch to batch: replicas cut the same batch, so theirs agree.
        """
        tensors, made = self._begin("gather_rows", value, may_vary=True)
        rows = self._rows(tensors, made)
        joined = [reshaped(x, [x.shape[0] * x.shape[1]], x, start=2) for x in rows]
        return tf.nest.pack_sequence_as(value, joined)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        name = f"broadcast(source={source})"
        if source not in range(self.num_replicas):
            raise ValueError(
                f"{name}: source must be >= 0 and < {self.num_replicas}, the number of replicas"
            )
        tensors, made = self._begin(name, value)
        # A condition in the graph: in Python the other replicas' values would be cut off from the
        # gradient, and its sum with them.
        is_source = tf.equal(self._context.replica_id_in_sync_group, source)
        sums = self._sums([_masked(is_source, _widened(x)) for x in tensors], made)
        return tf.nest.pack_sequence_as(
            value, [tf.cast(total, x.dtype) for total, x in zip(sums, tensors, strict=True)]
        )

    def note(self, operation: str) -> None:
        """Record a collective that is made elsewhere, so that a difference in it is found too."""
        self._record((operation, _caller()))

    def end(self) -> None:
        """Record that this replica makes no more collectives in this step."""
        self._log.end(self._number)

    def _gathered(self, name: str, value: Any, axis: int) -> Any:
        name = f"{name}(axis={axis})"
        tensors, made = self._begin(name, value)
        for x in tensors:
            if not -x.shape.rank - 1 <= axis <= x.shape.rank:
                bounds = f">= {-x.shape.rank - 1} and <= {x.shape.rank}"
                raise ValueError(f"{name}: axis must be {bounds} for {_format_type(x)}")

        def move_axis(rows: tf.Tensor) -> tf.Tensor:
            order = list(range(1, rows.shape.rank))
            order.insert(axis % rows.shape.rank, 0)
            return tf.transpose(rows, order)

        return tf.nest.pack_sequence_as(
            value, [move_axis(rows) for rows in self._rows(tensors, made)]
        )

    def _own_part(self, name: str, x: tf.Tensor, axis: int) -> tf.Tensor:
        """Return the part of a tensor along an axis that has this replica's number."""
        rank = x.shape.rank
        if not -rank <= axis < rank or x.shape[axis] % self.num_replicas:
            raise ValueError(
                f"{name}: axis {axis} of {_format_type(x)} must exist, and be divisible by "
                f"{self.num_replicas}, the number of replicas; pad it with tf.pad"
            )
        sizes = x.shape.as_list()
        sizes[axis] //= self.num_replicas
        begin: list[Any] = [0] * len(sizes)
        begin[axis] = self._context.replica_id_in_sync_group * sizes[axis]
        return tf.slice(x, begin, sizes)

    def _reduced(self, name: str, value: Any, op: str, options: str = "") -> Any:
        if problem := constraints.check_value("op", op, _OPS):
            raise ValueError(f"{name}: {problem}")
        tensors, made = self._begin(name := f"{name}({op}{options})", value)
        for x in tensors:
            if x.dtype.is_bool or (op == "mean" and not x.dtype.is_floating):
                raise ValueError(
                    f"{name}: the {op} of {_format_type(x)} is not defined; "
                    "cast it to a float type first"
                )
        if op in ("min", "max"):
            reduce = tf.reduce_min if op == "min" else tf.reduce_max
            return tf.nest.pack_sequence_as(
                value, [reduce(rows, axis=0) for rows in self._rows(tensors, made)]
            )
        sums = self._sums([_widened(x) for x in tensors], made)
        results = [total / self.num_replicas for total in sums] if op == "mean" else sums
        return tf.nest.pack_sequence_as(
            value, [tf.cast(result, x.dtype) for result, x in zip(results, tensors, strict=True)]
        )

    def _rows(self, tensors: list[tf.Tensor], made: Made) -> list[tf.Tensor]:
        """Return the values of each tensor on all replicas, [replicas, ...]."""
        number = self._context.replica_id_in_sync_group
        is_own = tf.equal(tf.range(self.num_replicas)[:, None], number)
        rows = [_masked(is_own, tf.reshape(_widened(x), [1, -1])) for x in tensors]
        sums = self._sums(rows, made)
        return [
            tf.cast(reshaped(total, [self.num_replicas], x), x.dtype)
            for total, x in zip(sums, tensors, strict=True)
        ]

    def _sums(self, tensors: list[tf.Tensor], made: Made) -> list[tf.Tensor]:
        return packed(tensors, lambda flat: self._sum(flat, made))

    def _sum(self, flat: tf.Tensor, made: Made) -> tf.Tensor:
        if self.num_replicas == 1:
            return flat

        @tf.custom_gradient
        def summed(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                of_gradient = f"gradient of {made[0]}", made[1]
                self._record(of_gradient)
                return self._sum(upstream, of_gradient)

            return self._context.all_reduce(tf.distribute.ReduceOp.SUM, x), gradient

        return summed(flat)

    def _begin(
        self, name: str, value: Any, *, may_vary: bool = False
    ) -> tuple[list[tf.Tensor], Made]:
        """Check a nest and record its collective; return its tensors, and what was recorded."""
        if self._is_part:
            raise ConfigError(
                f"task: {name} at {_caller()} would join parts of the global batch, for "
                "batch.accumulate and batch.shards cut it; add batch.accumulate=1 batch.shards=null"
            )
        tensors = []
        for leaf in tf.nest.flatten(value):
            if leaf is None or isinstance(leaf, _SPARSE):
                raise ValueError(
                    f"{name}: {type(leaf).__name__} is no dense tensor; "
                    "make it one with tf.convert_to_tensor or its to_dense"
                )
            x = tf.convert_to_tensor(leaf)
            if not (x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool):
                raise ValueError(
                    f"{name}: {_format_type(x)} is not of a number type that replicas can exchange"
                )
            if not (x.shape.is_fully_defined() or may_vary):
                raise ValueError(
                    f"{name}: the shape of {_format_type(x)} is not static; "
                    "replicas must know that theirs agree"
                )
            tensors.append(x)
        nest = pprint.pformat(
            tf.nest.pack_sequence_as(value, [_format_type(x) for x in tensors]), width=sys.maxsize
        )
        made = f"{name} of {nest.replace(chr(39), '')}", _caller()
        self._record(made)
        return tensors, made

    def _record(self, made: Made) -> None:
        if self.num_replicas > 1 and tf.compat.v1.get_default_graph() is not self._graph:
            raise ValueError(
                f"{_text(made)} is inside a tf.function, a tf.while_loop or a tf.cond, where "
                "replicas cannot communicate; jit compiles the loss like that"
            )
        self._log.record(self._number, made)


def _widened(x: tf.Tensor) -> tf.Tensor:
    """Cast to a type that all devices can add.

    A sum of half-precision values neither overflows nor loses bits in it.
    """
    if x.dtype.is_floating:
        return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
    return tf.cast(x, tf.int64)


def _masked(mask: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    # Minus zero, because adding it changes nothing: plus zero would turn a minus zero into a plus
    # zero.
    return tf.where(mask, x, -tf.zeros([], x.dtype))


def _format_type(x: tf.Tensor) -> str:
    return f"{x.dtype.name}{'[...]' if x.shape.rank is None else x.shape.as_list()}"


def _caller() -> str:
    """Return file and line of the user's code that makes a collective."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].startswith(_ENGINE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_BELOW_OVERFLOW = 2.0**14
"""float16 ends at 2**16; a gradient is scaled to at most twice this, and its sum with it."""

_LEAST_BOUND = 2.0**-100
_EXPONENT = 0x7F800000  # the bits of a float32 that alone make a power of two


class CompressedExchange:
    """Rounds gradients, sums them over the replicas in that type, and returns float32.

    float16 has few exponents, so a gradient is scaled by a power of two before. The scale follows
    from the sum of the replicas' largest values, which no part of the gradient's sum exceeds: it
    travels with the tensors that are not rounded, so nothing is kept from step to step, and a
    gradient that is not finite anywhere is NaN everywhere, for the divergence monitor to see.
    """

    def __init__(self, dtype: tf.DType) -> None:
        self._dtype = dtype

    def __call__(
        self,
        replica: tf.distribute.ReplicaContext,
        gradients: list[tf.Tensor],
        others: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sum float32 tensors over the replicas, only the gradients rounded; in replica context."""
        if self._dtype != tf.float16 or not gradients:
            return packed(gradients, lambda x: self._sum(replica, x)), flat_sum(replica, others)
        largest = [
            on_own_device(lambda x: tf.reduce_max(tf.abs(x)), gradient) for gradient in gradients
        ]
        *exact, bound = flat_sum(replica, [*others, tf.reduce_max(tf.stack(largest))])
        # The power of two of the bound; infinite if the bound is not finite.
        power = tf.bitcast(
            tf.bitwise.bitwise_and(tf.bitcast(bound, tf.int32), _EXPONENT), tf.float32
        )
        scale = _BELOW_OVERFLOW / tf.maximum(power, _LEAST_BOUND)
        return packed(gradients, lambda x: self._sum(replica, x * scale) / scale), exact

    def _sum(self, replica: tf.distribute.ReplicaContext, flat: tf.Tensor) -> tf.Tensor:
        return tf.cast(
            replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(flat, self._dtype)), tf.float32
        )
