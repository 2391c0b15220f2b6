"""A copy of all that a checkpoint holds, as it is now: taken between two steps, written while the next ones run.

Taking it reads variables, which can make the replicas communicate: every process takes part. Writing it concerns nobody else.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, or one slice of it.

    Attributes:
        key: its name in TensorFlow's format.
        piece: which part of the whole it is, in TensorFlow's notation; empty: all of it.
    """

    key: str
    piece: str


class Camera:
    """Takes snapshots of a `tf.train.Checkpoint` whose objects are complete.

    What it reads is traced once: to gather some hundred variables anew took half a second, the traced function takes milliseconds.

    Touches private names of TensorFlow 2.21 (`_saver._gather_serialized_tensors`), for `write` alone would write at once, gather
    anew each time, and write variables that other processes hold on their machines; tests/test_snapshot.py fails loudly when
    they move.

    Args:
        checkpoint: what is saved.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._entries: list[Entry] = []

    def take(self) -> Snapshot:
        """Takes a snapshot; collective."""
        values = self._read()  # the first time it also notes the entries
        return Snapshot(self._entries, values)

    @tf.function(autograph=False)
    def _read(self) -> list[tf.Tensor]:
        """Gives the content of each entry, in the memory of this process."""
        self._entries, tensors = [], []
        for contents in self._checkpoint._saver._gather_serialized_tensors()[0].values():
            for key, content in contents.items():
                for piece, value in (content if isinstance(content, Mapping) else {"": content}).items():
                    self._entries.append(Entry(key, piece))
                    # From an accelerator's memory, or another process's.
                    with tf.device("CPU:0"):
                        tensors.append(tf.identity(getattr(value, "tensor", value)))
        return tensors


class Snapshot:
    """The content of a checkpoint at one moment.

    A tensor that was read never changes: an update that finds its variable's memory still in use here takes new memory. So
    nothing is copied that the next steps leave alone.
    """

    def __init__(self, entries: Sequence[Entry], values: Sequence[tf.Tensor]) -> None:
        self._entries, self._values = entries, values

    def write(self, prefix: str) -> None:
        """Writes `<prefix>.index` and `<prefix>.data-00000-of-00001`, which `tf.train.Checkpoint.read` reads.

        Raises:
            tf.errors.OpError: they could not be written.
        """
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=[entry.key for entry in self._entries],
                shape_and_slices=[entry.piece for entry in self._entries],
                tensors=self._values,
            )

    def variables(self) -> dict[str, dict[str, Any]]:
        """Describes every variable: name -> {"shape", "dtype", "crc32"}; of one in pieces, those of each piece."""
        pairs = zip(self._entries, self._values, strict=True)
        return dict(sorted(_described(entry, value) for entry, value in pairs if value.dtype != tf.string))


def _described(entry: Entry, value: tf.Tensor) -> tuple[str, dict[str, Any]]:
    name = entry.key.removesuffix(_ATTRIBUTE) + (f" [{entry.piece}]" if entry.piece else "")
    content = value.numpy()
    return name, {"shape": list(content.shape), "dtype": value.dtype.name, "crc32": f"{zlib.crc32(content):08x}"}
