"""User-defined objects that return records by index, and files of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Records:
    """A source of any records; it says when two threads call it at once."""

    def __init__(self, records: Sequence[Any] = (), *, count: int = 12) -> None:
        self.records = records or [
            {"image": np.full((4, 4, 1), number, np.uint8), "label": number % 3}
            for number in range(count)
        ]
        self.calls: list[int] = []
        self._busy = False

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        assert not self._busy, "called by two threads at once"
        self._busy = True
        self.calls.append(index)
        record = self.records[index]
        self._busy = False
        return record


class Batches(Records):
    """The same, which returns several at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def png(value: int, size: Sequence[int] = (4, 4), channels: int = 1) -> bytes:
    """Return an image file of one color."""
    import tensorflow as tf

    content: bytes = tf.io.encode_png(np.full((*size, channels), value, np.uint8)).numpy()
    return content


def everything(split: Any) -> dict[str, np.ndarray]:
    """Return all examples of a split, in order."""
    import tensorflow as tf

    batch = split.fetch(tf.range(split.num_examples, dtype=tf.int64))
    return {name: tensor.numpy() for name, tensor in batch.items()}


def write_npy(folder: Path, features: np.ndarray, labels: np.ndarray) -> Path:
    """Write a folder for `dataset=npy`."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", labels)
    return folder
