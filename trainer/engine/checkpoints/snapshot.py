"""Snapshots of a checkpoint's variables: captured between two steps, written during later ones.

A capture reads variables, which can make the replicas communicate: every process takes part. The
write communicates nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"


Entry: TypeAlias = tuple[str, str]
"""The name of a tensor in TensorFlow's format, and the slice of it in its notation; '': all."""


class SnapshotReader:
    """Captures snapshots of a `tf.train.Checkpoint` whose objects are complete.

    The reads are traced once: gathering some hundred variables anew took half a second, the traced
    function takes milliseconds.

    Uses a private name of TensorFlow 2.21, `_saver._gather_serialized_tensors`: the public `write`
    would write at once, gather anew each time, and write the variables of other processes on their
    machines. tests/engine/checkpoints/test_snapshot.py fails when the name moves.

    Args:
        checkpoint: the objects to save.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._entries: list[Entry] = []

    def capture(self) -> Snapshot:
        """Return the variables' values as they are now; collective."""
        values = self._read()  # the first call also records the entries
        return Snapshot(self._entries, values)

    @tf.function(autograph=False)
    def _read(self) -> list[tf.Tensor]:
        """Return the content of each entry, in the memory of this process."""
        self._entries = []
        tensors = []
        for contents in self._checkpoint._saver._gather_serialized_tensors()[0].values():
            for key, content in contents.items():
                slices = content if isinstance(content, Mapping) else {"": content}
                for slice_spec, value in slices.items():
                    self._entries.append((key, slice_spec))
                    # From the memory of an accelerator or of another process.
                    with tf.device("CPU:0"):
                        tensors.append(tf.identity(getattr(value, "tensor", value)))
        return tensors


@dataclass(eq=False)
class Snapshot:
    """The content of a checkpoint at one moment.

    A tensor that was read never changes: an update whose variable still shares its memory with a
    snapshot allocates new memory. So variables that the next steps leave alone are not copied.

    Attributes:
        entries: what each value is.
        values: the tensors, on the CPU of this process.
    """

    entries: Sequence[Entry]
    values: Sequence[tf.Tensor]

    def write(self, prefix: str) -> None:
        """Write the files that `tf.train.Checkpoint.read` reads.

        Args:
            prefix: path of `<prefix>.index` and `<prefix>.data-00000-of-00001`.

        Raises:
            tf.errors.OpError: they could not be written.
        """
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=[key for key, _ in self.entries],
                shape_and_slices=[slice_spec for _, slice_spec in self.entries],
                tensors=self.values,
            )

    def variables(self) -> dict[str, dict[str, Any]]:
        """Return name -> {"shape", "dtype", "crc32"} of every variable, or of its slices."""
        described = {}
        for (key, slice_spec), value in zip(self.entries, self.values, strict=True):
            if value.dtype == tf.string:
                continue
            content = value.numpy()
            name = key.removesuffix(_ATTRIBUTE) + (f" [{slice_spec}]" if slice_spec else "")
            described[name] = {
                "shape": list(content.shape),
                "dtype": value.dtype.name,
                "crc32": f"{zlib.crc32(content):08x}",
            }
        return dict(sorted(described.items()))
