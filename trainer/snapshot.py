"""A copy of all that a checkpoint holds, as it is now: taken between two steps, written while the next ones run.

Taking it reads variables, which can make the replicas communicate: every process takes part. Writing it concerns nobody else.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
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
        value: the content, in the memory of this process.
    """

    key: str
    piece: str
    value: tf.Tensor


class Snapshot:
    """The content of a `tf.train.Checkpoint` at one moment.

    A tensor that was read never changes: an update that finds its variable's memory still in use here takes new memory. So
    nothing is copied that the next steps leave alone.

    Touches private names of TensorFlow 2.21 (`_saver._gather_serialized_tensors`), for `write` alone would write at once, trace
    anew for variables that other processes hold, and write those on their machines; tests/test_snapshot.py fails loudly when
    they move.

    Args:
        checkpoint: what is saved.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        serialized = checkpoint._saver._gather_serialized_tensors()[0]
        self._entries = [entry for tensors in serialized.values() for key, value in tensors.items() for entry in _entries(key, value)]

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
                tensors=[entry.value for entry in self._entries],
            )

    def variables(self) -> dict[str, dict[str, Any]]:
        """Describes every variable: name -> {"shape", "dtype", "crc32"}; of one in pieces, those of each piece."""
        return dict(sorted(_described(entry) for entry in self._entries if entry.value.dtype != tf.string))


def _entries(key: str, value: Any) -> list[Entry]:
    pieces = value if isinstance(value, Mapping) else {"": value}
    # Onto this process's own memory, from an accelerator's or another process's.
    with tf.device("CPU:0"):
        return [Entry(key, piece, tf.identity(getattr(content, "tensor", content))) for piece, content in pieces.items()]


def _described(entry: Entry) -> tuple[str, dict[str, Any]]:
    name = entry.key.removesuffix(_ATTRIBUTE) + (f" [{entry.piece}]" if entry.piece else "")
    content = entry.value.numpy()
    return name, {"shape": list(content.shape), "dtype": entry.value.dtype.name, "crc32": f"{zlib.crc32(content.tobytes()):08x}"}
