"""The examples of any split as records: serialized `tf.train.Example`, always of the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from trainer.datasets.cache.example_cache import CachedSplit
from trainer.datasets.images.image_files import FileSplit
from trainer.datasets.records.record_features import Feature
from trainer.datasets.records.record_split import RecordSplit, read_record
from trainer.protocols import Split

_BATCH = 256  # examples that are fetched at a time


class RecordSource:
    """The records of a split, by their numbers.

    Attributes:
        num_examples: how many there are.
        features: what is in a record, as the option `features` says it.
        label: which feature is the class.
    """

    label = "label"

    def __init__(self, split: Any, max_value: float) -> None:
        """Take a split, and the value of white if its features are pixels.

        Raises:
            ValueError: its examples cannot be written as records.
        """
        split = split.uncached if isinstance(split, CachedSplit) else split
        self._split = split
        self.num_examples: int = split.num_examples
        if isinstance(split, RecordSplit):
            self.features = {name: _as_option(x) for name, x in split.features.by_name.items()}
            self.label = split.features.label
        elif isinstance(split, FileSplit):
            self.features = {"image": {"kind": "image"}, "label": {"kind": "int"}}
        else:
            self.features = _numbers(split, max_value)

    def records(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the records of the examples from `start` to `stop`."""
        if isinstance(self._split, RecordSplit):
            for index in range(start, stop):
                yield read_record(*self._split.place(index))
        elif isinstance(self._split, FileSplit):
            for index in range(start, stop):
                content, label = self._split.encoded(index)
                yield _example(image=content, label=label)
        else:
            for first in range(start, stop, _BATCH):
                indices = tf.range(first, min(first + _BATCH, stop), dtype=tf.int64)
                batch = self._split.fetch(indices)
                features, labels = batch["features"].numpy(), batch["label"].numpy()
                for values, label in zip(features, labels.tolist(), strict=True):
                    yield _example(label=label, features=values.tobytes())


def _numbers(split: Any, max_value: float) -> dict[str, dict[str, Any]]:
    """Return what is in the records of a split of arrays, which are written as their bytes."""
    if not isinstance(split, Split):
        raise ValueError("its training examples come as a stream, so they have no numbers")
    batch = split.fetch(tf.constant([0], tf.int64))
    if batch.keys() != {"features", "label"}:
        names = ", ".join(sorted(batch))
        raise ValueError(f"its examples have {names}; only features and label can be written")
    if not (tf.is_tensor(batch["features"]) and tf.is_tensor(batch["label"])):
        raise ValueError("its features or labels are several; only one of each can be written")
    features = batch["features"].numpy()
    if features.dtype.kind not in "uif" or batch["label"].shape != [1]:
        raise ValueError(
            f"its features are {features.dtype}, its labels {batch['label'].shape[1:]}; "
            "only numbers with one class each can be written"
        )
    shape, dtype = features.shape[1:], str(features.dtype)
    feature = Feature(kind="raw", shape=shape, dtype=dtype, max_value=float(max_value))
    return {"features": _as_option(feature), "label": {"kind": "int"}}


def _as_option(feature: Feature) -> dict[str, Any]:
    """Return a feature as the option `features` says it, without what is the default."""
    plain = Feature(kind=feature.kind)
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(feature).items()
        if name == "kind" or value != getattr(plain, name)
    }


def _example(label: int | None, **contents: bytes) -> bytes:
    """Return a serialized example of bytes and a label."""
    features = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
        for name, content in contents.items()
    }
    features["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    example = tf.train.Example(features=tf.train.Features(feature=features))
    # The order of a protocol buffer's map is otherwise not fixed.
    return bytes(example.SerializeToString(deterministic=True))
