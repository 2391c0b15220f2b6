"""Snapshots of a checkpoint's variables: captured between two steps, written during later ones.

Neither communicates: each process reads its own copy of a variable.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.errors import CheckpointError
from trainer.runs.state_memory import StoredTensor

_ATTRIBUTES = "/.ATTRIBUTES/"
_ATTRIBUTE = f"{_ATTRIBUTES}VARIABLE_VALUE"

Entry: TypeAlias = tuple[str, str]
"""The name of a tensor in TensorFlow's format, and the slice of it in its notation; '': all."""


class SnapshotReader:
    """Captures snapshots of a `tf.train.Checkpoint` whose objects are complete, and restores them.

    The reads are traced once: gathering some hundred variables again took half a second, the traced
    function takes milliseconds.

    Uses private names of TensorFlow 2.21, `_saver._gather_serialized_tensors` and
    `_restore_from_tensors`: the public `write` would write immediately, gather again each time, and
    write the variables of other processes on their machines, and the public `read` reads files.
    tests/engine/checkpoints/test_checkpointer.py fails when a name moves.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._entries: list[Entry] = []

    def capture(self) -> Snapshot:
        """Return the variables' values as they are now."""
        values = self._read()  # the first call also records the entries
        return Snapshot(self._entries, values)

    def restore(self, values: Mapping[Entry, tf.Tensor]) -> None:
        """Give every variable the value that a snapshot of the same objects has for it.

        Raises:
            CheckpointError: it is of other objects; no variable was changed.
        """
        gathered = self._checkpoint._saver._gather_serialized_tensors()[0]
        own = {
            (key, slice_spec)
            for contents in gathered.values()
            for key, content in contents.items()
            for slice_spec in _slices(content)
        }
        if differing := own ^ values.keys():
            name = min(differing)[0].removesuffix(_ATTRIBUTE)
            place = "this experiment" if min(differing) in own else "the state in memory"
            raise CheckpointError(
                f"the state in memory does not fit this experiment: only {place} has {name}; "
                "the same command continues from the newest checkpoint"
            )
        for owner, contents in gathered.items():
            if owner is None or not contents:  # the description of the objects, or no variable
                continue
            restored = {}
            for key, content in contents.items():
                name = key.partition(_ATTRIBUTES)[2] or key
                parts = {slice_spec: values[key, slice_spec] for slice_spec in _slices(content)}
                restored[name] = parts if isinstance(content, Mapping) else parts[""]
            owner._restore_from_tensors(restored)

    @tf.function(autograph=False)
    def _read(self) -> list[tf.Tensor]:
        """Return the content of each entry, in the memory of this process."""
        self._entries = []
        tensors = []
        for contents in self._checkpoint._saver._gather_serialized_tensors()[0].values():
            for key, content in contents.items():
                for slice_spec, value in _slices(content).items():
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
    """

    entries: Sequence[Entry]
    values: Sequence[tf.Tensor]

    def write(self, prefix: str) -> None:
        """Write the files that `tf.train.Checkpoint.read` reads.

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

    def by_entry(self) -> dict[Entry, tf.Tensor]:
        """Return what `SnapshotReader.restore` takes."""
        return dict(zip(self.entries, self.values, strict=True))

    def stored_tensors(self) -> list[StoredTensor]:
        """Return what is written to memory; valid until the next step."""
        return [
            StoredTensor(*entry, value.dtype.name, value.shape.as_list(), _bytes_of(value))
            for entry, value in zip(self.entries, self.values, strict=True)
        ]

    def variables(self) -> dict[str, dict[str, Any]]:
        """Return name -> {"shape", "dtype", "crc32"} of every variable, or of its slices."""
        described = {}
        for (key, slice_spec), value in zip(self.entries, self.values, strict=True):
            if value.dtype == tf.string:
                continue
            name = key.removesuffix(_ATTRIBUTE) + (f" [{slice_spec}]" if slice_spec else "")
            described[name] = {
                "shape": value.shape.as_list(),
                "dtype": value.dtype.name,
                "crc32": f"{zlib.crc32(_bytes_of(value).data):08x}",
            }
        return dict(sorted(described.items()))


def _bytes_of(value: tf.Tensor) -> np.ndarray:
    """Return the memory of a tensor, not a copy, [n] uint8; of strings a serialized form."""
    if value.dtype == tf.string:
        return np.frombuffer(tf.io.serialize_tensor(value).numpy(), np.uint8)
    try:
        content = np.asarray(memoryview(value))
    except ValueError:  # no buffer has a type such as bfloat16
        content = value.numpy()
    return content.reshape(-1).view(np.uint8)


def _slices(content: Any) -> Mapping[str, Any]:
    """Return the slices of what is saved under a name; '': all of it."""
    return content if isinstance(content, Mapping) else {"": content}
