"""Streams: datasets of the user's own without random access, and their positions.

A stream is read from its start, so a continued run makes it again and skips what was trained on.
Its state is the number of steps that have read from it. A checkpoint of the iterator would be
faster where elements are expensive; but each process has its own iterator, its buffers would
be in every checkpoint, and not every dataset can be saved (docs/adr/0030-own-loops.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from trainer.engine.graph.state.variables import replicated
from trainer.errors import ConfigError

MAX_STREAMS = 8

InputFn: TypeAlias = Callable[[tf.distribute.InputContext], tf.data.Dataset]


@dataclass
class Stream:
    """One stream of a run, from which `steps` steps have read."""

    function: InputFn
    iterator: Any
    steps: int


class Streams:
    """All streams of a run, each opened at its position when it is first read.

    A stream is identified by the name of its function.

    Attributes:
        positions: for each stream a digest of its name, and the number of steps that have read
            from it, [MAX_STREAMS, 2] int64. It is up to date after `record`.
    """

    def __init__(
        self, context: tf.distribute.InputContext, seed: int, announce: Callable[[str], None]
    ) -> None:
        self.positions = replicated(tf.zeros([MAX_STREAMS, 2], tf.int64), "streams")
        self._context = context
        self._seed = seed
        self._announce = announce
        self._restored: dict[int, int] = {}
        self._streams: dict[str, Stream] = {}

    def restore(self) -> None:
        """Take over the positions of a checkpoint that was restored."""
        self._restored = {int(key): int(steps) for key, steps in self.positions.numpy() if key}

    def record(self) -> None:
        """Write all positions into the variable that is saved."""
        steps = {**self._restored, **{_key(name): x.steps for name, x in self._streams.items()}}
        rows = sorted(steps.items())
        rows += [(0, 0)] * (MAX_STREAMS - len(rows))
        self.positions.assign(tf.constant(rows, tf.int64))

    def stream(self, function: InputFn) -> Stream:
        """Return the stream of a function, opened.

        Raises:
            ConfigError: there are too many, or two functions have the same name.
        """
        name = function_name(function)
        existing = self._streams.get(name)
        if existing is None:
            return self._open(function, name)
        if existing.function is not function:
            raise ConfigError(
                f"loop: two input functions are called {name}, and a stream is continued by its "
                "name; define each once, outside of the while loop, with a unique name"
            )
        return existing

    def _open(self, function: InputFn, name: str) -> Stream:
        steps = self._restored.get(_key(name), 0)
        if len({*self._restored, *map(_key, self._streams), _key(name)}) > MAX_STREAMS:
            raise ConfigError(f"loop: {name} is one stream too many; at most {MAX_STREAMS}")
        if steps:
            self._announce(f"Skipping the elements of {steps} steps of the stream {name}.")
        self._streams[name] = Stream(function, self._iterator(function, steps), steps)
        return self._streams[name]

    def _iterator(self, function: InputFn, steps: int) -> Any:
        """Return an iterator over the elements after the first `steps` steps."""
        context = self._context
        num_local = context.num_replicas_in_sync // context.num_input_pipelines
        # For any earlier draws: a shuffle without a seed has the same order when it is made
        # again, and the same one in all processes.
        tf.random.set_seed(self._seed)
        with tf.device("CPU:0"):
            dataset = function(context)
            if not isinstance(dataset, tf.data.Dataset):
                raise ConfigError(
                    f"loop: {function_name(function)} must return a tf.data.Dataset; it returns "
                    f"{type(dataset).__name__}"
                )
            options = tf.data.Options()
            options.deterministic = True
            dataset = dataset.with_options(options).skip(steps * num_local)
            return iter(dataset.prefetch(2 * num_local))


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function in messages and checkpoints."""
    return str(getattr(function, "__name__", type(function).__name__))


def _key(name: str) -> int:
    """Return a digest of a name, > 0, of 40 bits."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:5]) + 1
