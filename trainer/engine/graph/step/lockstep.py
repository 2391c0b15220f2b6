"""Traces a function once for each shard, in lockstep: all of them synchronize at every update.

Each has its own thread, which waits while another one traces. When all have arrived at an
update, the replica's thread adds up what they bring and makes it, and they continue one after the
other. So a function that updates several times, like that of a GAN, is traced as it is written.

Touches private names of TensorFlow, those that its mirrored strategy starts its threads with;
tests/engine/graph/step/test_lockstep.py fails when they move.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.distribute import device_util
from tensorflow.python.framework import ops

from trainer.errors import ConfigError

T = TypeVar("T")
Meet = Callable[[Sequence[Any]], Sequence[Any]]

_current = threading.local()


def meet(brought: Any) -> Any:
    """Wait until all shards have come here, with what each `brought`; return what this one gets."""
    arrive: Callable[[Any], Any] = _current.arrive
    return arrive(brought)


def in_lockstep(count: int, compute: Callable[[int], T], at_meeting: Meet) -> list[T]:
    """Call `compute` for each of `count` shards; return what it returns.

    Args:
        compute: traces a shard, given its number, and calls `meet`.
        at_meeting: called in this thread with what the shards bring, in their order, whenever all
            have called `meet`; returns what each is given.

    Raises:
        ConfigError: a shard communicates with other replicas, or they make different updates.
    """
    if count == 1:
        with _arriving(lambda brought: at_meeting([brought])[0]):
            return [compute(0)]
    shards = [_Shard(number, compute) for number in range(count)]
    try:
        while True:
            for shard in shards:
                shard.go_on()
            ended = [shard.has_ended for shard in shards]
            if all(ended):
                return [shard.result for shard in shards]
            if any(ended):
                raise ConfigError(
                    "model: its train_step makes another number of updates in one shard than in "
                    "another; decide nothing in Python by what differs between calls"
                )
            results = at_meeting([shard.brought for shard in shards])
            for shard, value in zip(shards, results, strict=True):
                shard.given = value
    finally:
        for shard in shards:
            shard.abandon()


class _Abandoned(BaseException):
    """Ends the thread of a shard that another one's error has made useless."""


@contextmanager
def _arriving(arrive: Callable[[Any], Any]) -> Iterator[None]:
    outer = getattr(_current, "arrive", None)
    _current.arrive = arrive
    try:
        yield
    finally:
        _current.arrive = outer


class _Shard:
    def __init__(self, number: int, compute: Callable[[int], Any]) -> None:
        self._compute = compute
        self._number = number
        self._context = _Context()
        self._turn = threading.Semaphore(0)
        self._pause = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._is_abandoned = False
        self.has_ended = False
        self.result: Any = None
        self.brought: Any = None
        self.given: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"shard-{number}")

    def go_on(self) -> None:
        """Trace until the next meeting, or to the end; raise what `compute` raises."""
        if not self._thread.is_alive():
            self._thread.start()
        self._turn.release()
        self._pause.acquire()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """End the thread, if it still waits."""
        if self._thread.is_alive():
            self._is_abandoned = True
            self._turn.release()
            self._thread.join()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._is_abandoned:
                with self._context.entered(), _arriving(self._arrive):
                    self.result = self._compute(self._number)
                self.has_ended = True
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._pause.release()

    def _arrive(self, brought: Any) -> Any:
        self.brought = brought
        self._pause.release()
        self._turn.acquire()
        if self._is_abandoned:
            raise _Abandoned
        return self.given


class _Context:
    """What a thread of TensorFlow traces with, taken over from the replica's own."""

    def __init__(self) -> None:
        self._graph = ops.get_default_graph()
        self._graph.switch_to_thread_local()
        self._creators = self._graph._variable_creator_stack[:]
        scope = self._graph.get_name_scope()
        self._name_scope = f"{scope}/" if scope else ""
        self._device = device_util.current()
        self._replica = tf.distribute.get_replica_context()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Trace inside as the replica's thread would."""
        with ExitStack() as stack:
            stack.enter_context(self._graph.as_default())
            self._graph._variable_creator_stack = self._creators
            strategy = self._replica.strategy
            number = self._replica._replica_id_in_sync_group
            if tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy():
                stack.enter_context(_ShardReplica(strategy, number))
            if self._device:
                stack.enter_context(tf.device(self._device))
            if self._name_scope:
                stack.enter_context(tf.name_scope(self._name_scope))
            yield


class _ShardReplica(tf.distribute.ReplicaContext):
    """The context of a replica in a shard, which cannot communicate with other replicas."""

    def _merge_call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        raise ConfigError(
            "batch.shards: the model or its loss communicates between replicas, which cannot be "
            "done within a shard; add batch.shards=null"
        )

    @property
    def devices(self) -> list[str]:
        return [device_util.current()]
