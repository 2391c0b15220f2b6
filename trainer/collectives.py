"""Communication between the replicas inside a step: any nest of tensors is reduced, gathered or broadcast, and differentiated.

All of it is one primitive: the sum over the replicas of one flat buffer for each type. To gather is to sum what each replica
has put into a row of its own, to broadcast is to sum what only one has put in. The sum's gradient is itself a sum: the loss
is understood to be that of all replicas together.

Every replica must make the same collectives in the same order, else they wait for one another or add up what does not belong
together. Hence a log: what one replica makes is compared with what the others made, while the step is traced.
"""

from __future__ import annotations

import pprint
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import tensorflow as tf

from trainer import rules

_OPS = "sum | mean | min | max"
_END = "the end of the step"
_NEAR = 80  # characters of a nest's description that a message shows, from its start and around a difference
_SPARSE = (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)


class CollectiveLog:
    """The collectives of one trace of the step, in order; shared by the replicas of this process, which are traced in turn."""

    def __init__(self) -> None:
        self._made: list[tuple[str, int | None]] = []
        self._counts: dict[int | None, int] = {}

    def record(self, replica: int | None, line: str) -> None:
        """Notes that a replica makes a collective.

        Args:
            replica: its number; None where one trace is for all.
            line: what it makes and where, "<what> at <file>:<line>".

        Raises:
            ValueError: another replica made a different one at this point.
        """
        number = self._counts[replica] = self._counts.get(replica, 0) + 1
        if number > len(self._made):
            self._made.append((line, replica))
            return
        others, other = self._made[number - 1]
        if _what(others) != _what(line):
            raise ValueError(_difference(number, f"replica {other} has", others, f"replica {replica} has", line))

    def end(self, replica: int | None) -> None:
        """Notes that a replica makes no more of them.

        Raises:
            ValueError: another replica made more.
        """
        self.record(replica, _END)

    def lines(self) -> list[str]:
        """Gives what the replicas of this process have made, in order, for `first_difference`."""
        return [line for line, _ in self._made]


def first_difference(mine: Sequence[str], theirs: Sequence[str]) -> str | None:
    """Compares the logs' lines of two processes; gives the message for the first collective that differs, None if all agree.

    Where a collective was made may differ: only what is made must agree.
    """
    for number, (here, there) in enumerate(zip_longest(mine, theirs, fillvalue=_END), 1):
        if _what(here) != _what(there):
            return _difference(number, "here", here, "there", there)
    return None


def _what(line: str) -> str:
    return line.rsplit(" at ", 1)[0]


def _difference(number: int, who: str, line: str, other: str, others: str) -> str:
    rule = "all replicas must make the same, in the same order and with the same shapes"
    start = next((place for place, (a, b) in enumerate(zip(line, others, strict=False)) if a != b), 0)
    return f"collective {number} of the step differs: {who} {_shortened(line, start)}, {other} {_shortened(others, start)}; {rule}"


def _shortened(line: str, start: int) -> str:
    """Leaves out of a long nest what is far from where the difference starts."""
    what = _what(line)
    if len(what) <= 2 * _NEAR:
        return line
    first = max(_NEAR, start - _NEAR // 2)
    return f"{what[:_NEAR]} ... {what[first : first + _NEAR]} ...{line[len(what) :]}"


def packed(tensors: Sequence[tf.Tensor], exchange: Callable[[tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    """Passes tensors of static shapes through `exchange` as one flat buffer for each type: one collective, whatever their number."""
    results = list(tensors)
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        places = [place for place, x in enumerate(tensors) if x.dtype == dtype]
        flat = exchange(tf.concat([tf.reshape(tensors[place], [-1]) for place in places], axis=0))
        parts = tf.split(flat, [tensors[place].shape.num_elements() for place in places])
        for place, part in zip(places, parts, strict=True):
            results[place] = tf.reshape(part, tensors[place].shape)
    return results


def flat_sum(replica: tf.distribute.ReplicaContext, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums tensors of static shapes over the replicas, each in its own type, as one flat buffer for each type."""
    if replica.num_replicas_in_sync == 1:
        return list(tensors)
    return packed(tensors, lambda flat: replica.all_reduce(tf.distribute.ReduceOp.SUM, flat))


class Collectives:
    """One replica's collectives in one step. Made in replica context, anew for each replica while the step is traced.

    Args:
        log: shared by all replicas of the trace.
    """

    def __init__(self, log: CollectiveLog) -> None:
        self._log = log
        self._context = tf.distribute.get_replica_context()
        self._replicas: int = self._context.num_replicas_in_sync
        number = tf.get_static_value(self._context.replica_id_in_sync_group)
        self._replica = None if number is None else int(number)
        self._graph = tf.compat.v1.get_default_graph()

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduces a nest over all replicas."""
        return self._reduced("all_reduce", value, op)

    def map_reduce(self, fn: Callable[[Any], Any], value: Any, op: str = "sum") -> Any:
        """Reduces the nest that `fn` gives for each replica's value."""
        return self._reduced("map_reduce", fn(value), op)

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Stacks the replicas' values along a new axis."""
        name = f"all_gather(axis={axis})"
        tensors, line = self._begin(name, value)
        for x in tensors:
            if not -x.shape.rank - 1 <= axis <= x.shape.rank:
                raise ValueError(f"{name}: axis must be >= {-x.shape.rank - 1} and <= {x.shape.rank} for {_described(x)}")

        def moved(rows: tf.Tensor) -> tf.Tensor:
            order = list(range(1, rows.shape.rank))
            order.insert(axis % rows.shape.rank, 0)
            return tf.transpose(rows, order)

        return tf.nest.pack_sequence_as(value, [moved(rows) for rows in self._rows(tensors, line)])

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Gives all replicas the value of one."""
        name = f"broadcast(source={source})"
        if source not in range(self._replicas):
            raise ValueError(f"{name}: source must be >= 0 and < {self._replicas}, the number of replicas")
        tensors, line = self._begin(name, value)
        # A condition in the graph: in Python the other replicas' values would be cut off from the gradient, and its sum with them.
        is_source = tf.equal(self._context.replica_id_in_sync_group, source)
        sums = self._sums([_masked(is_source, _carried(x)) for x in tensors], line)
        return tf.nest.pack_sequence_as(value, [tf.cast(total, x.dtype) for total, x in zip(sums, tensors, strict=True)])

    def note(self, what: str) -> None:
        """Notes a collective that is made elsewhere, so that a difference between replicas is found in it too."""
        self._record(f"{what} at {_caller()}")

    def end(self) -> None:
        """Notes that this replica makes no more collectives in this step."""
        self._log.end(self._replica)

    def _reduced(self, name: str, value: Any, op: str) -> Any:
        if problem := rules.problem("op", op, _OPS):
            raise ValueError(f"{name}: {problem}")
        tensors, line = self._begin(name := f"{name}({op})", value)
        for x in tensors:
            if x.dtype.is_bool or (op == "mean" and not x.dtype.is_floating):
                raise ValueError(f"{name}: the {op} of {_described(x)} is not defined; cast it to a float type first")
        if op in ("min", "max"):
            reduce = tf.reduce_min if op == "min" else tf.reduce_max
            return tf.nest.pack_sequence_as(value, [reduce(rows, axis=0) for rows in self._rows(tensors, line)])
        sums = self._sums([_carried(x) for x in tensors], line)
        results = [total / self._replicas for total in sums] if op == "mean" else sums
        return tf.nest.pack_sequence_as(value, [tf.cast(result, x.dtype) for result, x in zip(results, tensors, strict=True)])

    def _rows(self, tensors: list[tf.Tensor], line: str) -> list[tf.Tensor]:
        """Gives what each tensor is on all replicas, [replicas, ...]."""
        is_own = tf.equal(tf.range(self._replicas)[:, None], self._context.replica_id_in_sync_group)
        rows = [_masked(is_own, tf.reshape(_carried(x), [1, -1])) for x in tensors]
        sums = self._sums(rows, line)
        return [tf.cast(tf.reshape(total, [self._replicas, *x.shape]), x.dtype) for total, x in zip(sums, tensors, strict=True)]

    def _sums(self, tensors: list[tf.Tensor], line: str) -> list[tf.Tensor]:
        return packed(tensors, lambda flat: self._sum(flat, line))

    def _sum(self, flat: tf.Tensor, line: str) -> tf.Tensor:
        if self._replicas == 1:
            return flat

        @tf.custom_gradient
        def summed(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                self._record(f"gradient of {line}")
                return self._sum(upstream, f"gradient of {line}")

            return self._context.all_reduce(tf.distribute.ReduceOp.SUM, x), gradient

        return summed(flat)

    def _begin(self, name: str, value: Any) -> tuple[list[tf.Tensor], str]:
        """Checks a nest, and logs what is made of it; gives its tensors and the log's line."""
        tensors = []
        for leaf in tf.nest.flatten(value):
            if leaf is None or isinstance(leaf, _SPARSE):
                raise ValueError(f"{name}: {type(leaf).__name__} is no dense tensor; make it one with tf.convert_to_tensor or its to_dense")
            x = tf.convert_to_tensor(leaf)
            if not (x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool):
                raise ValueError(f"{name}: {_described(x)} is not of a number type that replicas can exchange")
            if not x.shape.is_fully_defined():
                raise ValueError(f"{name}: the shape of {_described(x)} is not static; replicas must know that theirs agree")
            tensors.append(x)
        described = pprint.pformat(tf.nest.pack_sequence_as(value, [_described(x) for x in tensors]), width=sys.maxsize)
        line = f"{name} of {described.replace(chr(39), '')} at {_caller()}"
        self._record(line)
        return tensors, line

    def _record(self, line: str) -> None:
        if self._replicas > 1 and tf.compat.v1.get_default_graph() is not self._graph:
            reason = "where replicas cannot communicate; jit and batch.accumulate compile the loss like that"
            raise ValueError(f"{line} is inside a tf.function, a tf.while_loop or a tf.cond, {reason}")
        self._log.record(self._replica, line)


def _carried(x: tf.Tensor) -> tf.Tensor:
    """Casts to a type in which all devices can add, and in which a sum of half-precision values neither overflows nor loses bits."""
    if x.dtype.is_floating:
        return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
    return tf.cast(x, tf.int64)


def _masked(mask: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    # Minus zero, because adding it changes nothing: plus zero would turn a minus zero into a plus zero.
    return tf.where(mask, x, -tf.zeros([], x.dtype))


def _described(x: tf.Tensor) -> str:
    return f"{x.dtype.name}{'[...]' if x.shape.rank is None else x.shape.as_list()}"


def _caller() -> str:
    """Gives file and line of the user's code that makes a collective."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"] in (__name__, "trainer.step"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
