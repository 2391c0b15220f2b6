"""What is in a record: the features of a `tf.train.Example`, and how they are parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.text import did_you_mean

KINDS = {
    "image": "bytes_list",
    "raw": "bytes_list",
    "string": "bytes_list",
    "float": "float_list",
    "int": "int64_list",
}
"""Kind -> the list of an Example that holds it.

`image`: the bytes of a JPEG, PNG, BMP or GIF file. `raw`: the bytes of numbers, little-endian.
`string`: the name of a class.
"""
_DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
_NO_EXAMPLE = "no tf.train.Example"
_LISTS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int"}
_IMAGE_STARTS = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP"}


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature, as the configuration describes it.

    Attributes:
        shape: of one example, for numbers; [] is a scalar.
        max_length: for lists of any length: they are cut or filled up to so many; then there is no
            shape.
        dtype: of `raw` numbers.
        default: what stands for a value that is missing; None: it must not be missing. With
            `max_length` it fills lists up, and None is 0.
        max_value: of `raw` images: the value of white.
        start: of labels: the number of the first class.
    """

    kind: str
    shape: tuple[int, ...] = ()
    max_length: int | None = None
    dtype: str = "uint8"
    default: float | str | None = None
    max_value: float = 255.0
    start: int = 0

    @property
    def size(self) -> tuple[int, ...]:
        """The static shape of one example."""
        return self.shape if self.max_length is None else (self.max_length,)

    @property
    def tensor_dtype(self) -> tf.DType:
        """The type of what `parse` returns."""
        numbers = {"float": tf.float32, "int": tf.int64, "raw": tf.as_dtype(self.dtype)}
        return numbers.get(self.kind, tf.string)

    def specification(self) -> Any:
        """Return the feature as `tf.io.parse_example` takes it."""
        if self.kind in ("image", "raw", "string"):
            return tf.io.FixedLenFeature([], tf.string, self.default)
        if self.max_length is not None:
            filling = self.default or 0
            return tf.io.FixedLenSequenceFeature(
                [], self.tensor_dtype, allow_missing=True, default_value=filling
            )
        default = None if self.default is None else np.full(self.shape, self.default).tolist()
        return tf.io.FixedLenFeature(self.shape, self.tensor_dtype, default)

    def finish(self, values: tf.Tensor) -> tf.Tensor:
        """Return what was parsed, [B, ...], with its static shape, [B, *size]."""
        if self.kind == "raw":
            numbers = tf.io.decode_raw(values, self.tensor_dtype)
            return tf.reshape(numbers, [-1, *self.shape])
        if self.max_length is not None:
            values = values[:, : self.max_length]
            missing = self.max_length - tf.shape(values)[1]
            filling = tf.cast(self.default or 0, values.dtype)
            values = tf.pad(values, [[0, 0], [0, missing]], constant_values=filling)
        return tf.ensure_shape(values, [None, *self.size])


@dataclass(frozen=True)
class Features:
    """All features that are read, by name; `label` is the class, by its name if it is a string."""

    by_name: Mapping[str, Feature]
    label: str
    num_classes: int
    class_names: Sequence[str] | None = field(default=None)

    @property
    def inputs(self) -> list[str]:
        """The names of the features that are not the label."""
        return [name for name in self.by_name if name != self.label]

    @property
    def image(self) -> str | None:
        """The name of the feature that holds encoded images, if one does."""
        return next((name for name in self.inputs if self.by_name[name].kind == "image"), None)

    @property
    def pixels(self) -> Feature | None:
        """The feature that holds the pixels of images, [H, W, C], if it is the only input."""
        first = self.by_name[self.inputs[0]]
        is_image = first.kind == "raw" and len(first.shape) == 3 and first.shape[2] in (1, 3)
        return first if is_image and len(self.inputs) == 1 else None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example's features, if they are numbers."""
        sizes = [self.by_name[name].size for name in self.inputs]
        return sizes[0] if len(sizes) == 1 else (sum(int(np.prod(size)) for size in sizes),)

    def parse(self, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Parse serialized examples, [B] string.

        Returns:
            The features: encoded images, [B] string; the only other input, [B, ...] in its own
            type; or all inputs side by side, [B, d] float32. Then the labels, [B] int64, and
            whether each is a class, [B] bool.
        """
        specification = {name: part.specification() for name, part in self.by_name.items()}
        parsed = tf.io.parse_example(records, specification)
        values = {name: part.finish(parsed[name]) for name, part in self.by_name.items()}
        labels = self._classes(values.pop(self.label))
        is_class = tf.logical_and(labels >= 0, labels < self.num_classes)
        if len(values) == 1:
            (features,) = values.values()
        else:
            columns = [
                tf.reshape(tf.cast(value, tf.float32), [-1, int(np.prod(self.by_name[name].size))])
                for name, value in values.items()
            ]
            features = tf.concat(columns, axis=1)
        return features, tf.where(is_class, labels, 0), is_class

    def problem(self, record: bytes) -> str | None:
        """Return what is wrong with a record, or None."""
        if (has := describe_record(record)) == _NO_EXAMPLE:
            return has
        try:
            *_, is_class = self.parse(tf.constant([record]))
        except tf.errors.OpError as error:
            text = re.sub(r"^{{.*?}} |Name: <unknown>, |\.? \[Op:.*", "", str(error))
            return " ".join(text.split())
        return None if is_class[0] else f"{self.label} is none of the classes"

    def _classes(self, values: tf.Tensor) -> tf.Tensor:
        part = self.by_name[self.label]
        if part.kind != "string":
            return tf.reshape(values, [-1]) - part.start
        same = values[:, None] == tf.constant(list(self.class_names or ()))
        return tf.where(tf.reduce_any(same, axis=1), tf.argmax(same, axis=1), -1)


def read_features(values: Mapping[str, Any]) -> dict[str, Feature]:
    """Return the features of the option `features`: name -> kind, or -> a mapping of attributes.

    Raises:
        ValueError: a kind or an attribute is wrong.
    """
    return {name: _read_feature(f"features.{name}", value) for name, value in values.items()}


def describe_record(record: bytes) -> str:
    """Return what is in a record, for messages: `image: bytes (JPEG), label: int`."""
    try:
        present = tf.train.Example.FromString(record).features.feature
    except Exception:  # any exception of protobuf
        return _NO_EXAMPLE
    return (
        ", ".join(f"{name}: {describe_value(present[name])}" for name in sorted(present)) or "none"
    )


def describe_value(present: Any) -> str:
    """Return what a `tf.train.Feature` holds: its type, and how many numbers or bytes."""
    values = _values(present)
    name = _LISTS.get(present.WhichOneof("kind"), "empty")
    if name != "bytes" or len(values) != 1:
        return name if len(values) == 1 else f"{name} [{len(values)}]"
    kind = _image_kind(values[0])
    return f"bytes ({kind})" if kind else f"bytes ({len(values[0])})"


def suggest(record: bytes) -> str:
    """Return a value of `features` for a record: `{image: image, label: int}`."""
    present = tf.train.Example.FromString(record).features.feature
    parts = []
    for name in sorted(present):
        values = _values(present[name])
        kind = present[name].WhichOneof("kind")
        if kind == "bytes_list" and values and _image_kind(values[0]):
            parts.append(f"{name}: image")
        elif kind in ("float_list", "int64_list"):
            word = "float" if kind == "float_list" else "int"
            shape = f"{{kind: {word}, shape: [{len(values)}]}}"
            parts.append(f"{name}: {word if len(values) == 1 else shape}")
    return f"{{{', '.join(parts)}}}"


def _read_feature(key: str, value: Any) -> Feature:
    options = {"kind": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping) or "kind" not in options:
        raise ValueError(
            f"{key} ({value}) must be a kind, or a mapping with one: {', '.join(KINDS)}"
        )
    names = list(Feature.__dataclass_fields__)
    for name in options:
        if name not in names:
            hint = did_you_mean(str(name), names)
            raise ValueError(f"unknown key '{key}.{name}'{hint}; known: {', '.join(names)}")
    kind = options["kind"]
    if kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS)
        raise ValueError(f"{key}.kind ({kind}) must be one of {', '.join(KINDS)}{hint}")
    feature = Feature(**{**options, "shape": tuple(options.get("shape", ()))})
    if any(not isinstance(side, int) or side < 1 for side in feature.shape):
        raise ValueError(f"{key}.shape ({list(feature.shape)}) must be positive numbers")
    if feature.dtype not in _DTYPES:
        raise ValueError(f"{key}.dtype ({feature.dtype}) must be one of {', '.join(_DTYPES)}")
    if feature.max_length is not None and (
        kind not in ("float", "int") or feature.shape or feature.max_length < 1
    ):
        raise ValueError(
            f"{key}.max_length ({feature.max_length}) must be at least 1, for a feature of kind "
            "float or int without a shape"
        )
    return feature


def _values(present: Any) -> Sequence[Any]:
    kind = present.WhichOneof("kind")
    return getattr(present, kind).value if kind else ()


def _image_kind(content: bytes) -> str | None:
    return next((kind for start, kind in _IMAGE_STARTS.items() if content.startswith(start)), None)
