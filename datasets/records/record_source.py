"""The examples of any split as records: serialized `tf.train.Example`, always of the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
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

    def __init__(self, split: Any, max_value: float, *, raw: bool) -> None:
        """Take a split.

        Args:
            split: the split.
            max_value: the value of white, if its features are pixels.
            raw: whether arrays are written as their bytes, which is fastest to read. Otherwise
                images become PNG, which every reader knows, and other arrays lists of numbers.

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
            self.features = _numbers(split, max_value, raw=raw)
        self._encode = _encoder(self.features)

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
                    yield _example(label=label, **self._encode(values))


def _numbers(split: Any, max_value: float, *, raw: bool) -> dict[str, dict[str, Any]]:
    """Return what is in the records of a split of arrays.

    Raises:
        ValueError: it has other tensors than features and labels, or text.
    """
    if not isinstance(split, Split):
        raise ValueError("its training examples come as a stream, so they have no numbers")
    batch = split.fetch(tf.constant([0], tf.int64))
    if batch.keys() != {"features", "label"}:
        names = ", ".join(sorted(batch))
        raise ValueError(f"its examples have {names}; only features and label can be written")
    features = batch["features"].numpy()
    if features.dtype.kind not in "uif" or batch["label"].shape != [1]:
        raise ValueError(
            f"its features are {features.dtype}, its labels {batch['label'].shape[1:]}; "
            "only numbers with one class each can be written"
        )
    shape = features.shape[1:]
    if raw:
        feature = Feature(
            kind="raw", shape=shape, dtype=str(features.dtype), max_value=float(max_value)
        )
        return {"features": _as_option(feature), "label": {"kind": "int"}}
    is_image = len(shape) == 3 and shape[2] in (1, 3) and features.dtype == np.uint8
    if is_image and max_value == 255:
        return {"image": {"kind": "image"}, "label": {"kind": "int"}}
    if features.dtype == np.float64:
        raise ValueError("its features are float64; a list of an Example has float32; cast them")
    kind = "float" if features.dtype.kind == "f" else "int"
    return {"features": _as_option(Feature(kind=kind, shape=shape)), "label": {"kind": "int"}}


def _encoder(features: Mapping[str, Any]) -> Callable[[np.ndarray], dict[str, Any]]:
    """Return the function that makes the features of a record out of an array."""
    if "image" in features:
        return lambda values: {"image": bytes(tf.io.encode_png(values).numpy())}
    if features.get("features", {}).get("kind") == "raw":
        return lambda values: {"features": values.tobytes()}
    return lambda values: {"features": values.ravel()}


def _as_option(feature: Feature) -> dict[str, Any]:
    """Return a feature as the option `features` says it, without what is the default."""
    plain = Feature(kind=feature.kind)
    values = {name: getattr(feature, name) for name in Feature.__dataclass_fields__}
    changed: Mapping[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name == "kind" or value != getattr(plain, name)
    }
    return dict(changed)


def _example(**values: Any) -> bytes:
    """Return a serialized example of bytes and numbers."""
    features = {name: _feature(value) for name, value in values.items()}
    example = tf.train.Example(features=tf.train.Features(feature=features))
    # The order of a protocol buffer's map is otherwise not fixed.
    return bytes(example.SerializeToString(deterministic=True))


def _feature(value: Any) -> tf.train.Feature:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    numbers = np.atleast_1d(value)
    if numbers.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=numbers))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))
