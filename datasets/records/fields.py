"""What is in a record, and reading of records by their index. No TensorFlow."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainer.annotations import Ge, Le
from trainer.text import first_line

logger = logging.getLogger(__name__)

FEATURES = ("features", "image", "img", "x")
LABELS = ("label", "labels", "target", "y")
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM")


class RecordError(ValueError):
    """A record is not as the others; the message is the rest of a sentence."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the first record of a source looks like.

    Attributes:
        features: key or number of the features in a record; None: the record is the features.
        label: key or number of the label; None: records have no label.
        encoded: whether the features are the bytes of an image file, which the graph decodes.
        shape: shape of one example's features; of encoded images, what they are resized to.
        dtype: type of the features as they are stored.
        label_kind: `class`: a label is one integer or a name; `number`: numbers with a fraction;
            `multilabel`: several integers, 0 or 1.
        label_shape: shape of one example's label; of a class ().
    """

    features: str | int | None
    label: str | int | None
    encoded: bool
    shape: tuple[int, ...]
    dtype: np.dtype
    label_kind: str = "class"
    label_shape: tuple[int, ...] = ()


class Fields:
    """The parts of a record that are used, and what is fixed before reading."""

    def __init__(
        self,
        *,
        features: str | int | None = None,
        label: str | int | None = None,
        shape: list[Annotated[int, Ge(1)]] | None = None,
        image_size: list[Annotated[int, Ge(1)]] | None = None,
        channels: Annotated[int | None, Ge(1), Le(3)] = None,
        num_classes: Annotated[int | None, Ge(1)] = None,
        class_names: list[str] | None = None,
    ) -> None:
        """Take the options; what is None is found from the first record."""
        self.features = features
        self.label = label
        self.shape = None if shape is None else tuple(shape)
        self.image_size = image_size
        self.channels = channels
        self.num_classes = num_classes
        self.class_names = class_names
        if channels == 2:
            raise ValueError("fields.channels (2) must be 1 or 3")
        if num_classes is not None and class_names is not None and len(class_names) != num_classes:
            raise ValueError(
                f"fields.class_names has {len(class_names)} names for {num_classes} classes "
                "(fields.num_classes); remove one of the two"
            )

    def layout(self, record: Any, name: str) -> Layout:
        """Return the layout of records, found from the first one.

        Raises:
            ValueError: a part is missing, or cannot be the features.
        """
        features = _key(record, self.features, FEATURES, 0, "features", name)
        label = _key(record, self.label, LABELS, 1, "label", name)
        value = part(record, features)
        kind, label_shape = ("class", ()) if label is None else _label_kind(part(record, label))
        content = encoded_image(value)
        dtype = np.dtype(np.uint8)
        if content is not None:
            size, channels = _image_size(content, name)
            shape: tuple[int, ...] = (*(self.image_size or size), self.channels or channels)
        elif isinstance(value, str | bytes):
            raise ValueError(
                f"{name}: the features of record 0 are text or bytes that are no JPEG, PNG, GIF or "
                "BMP image; make numbers of them in __getitem__, or choose other ones with "
                "dataset.fields.features=<key>"
            )
        else:
            try:
                array = as_array(value, self.shape)
            except RecordError as error:
                raise ValueError(f"{name}: record 0 {error}") from error
            shape, dtype = array.shape, array.dtype
        return Layout(
            features=features,
            label=label,
            encoded=content is not None,
            shape=shape,
            dtype=dtype,
            label_kind=kind,
            label_shape=label_shape,
        )


def _key(
    record: Any,
    setting: str | int | None,
    usual: Sequence[str],
    number: int,
    what: str,
    name: str,
) -> str | int | None:
    """Return the key of a part of a record; None: the record is the features alone."""
    if not isinstance(record, Mapping | tuple):
        if setting is None:
            return None
        raise ValueError(
            f"fields.{what} ({setting}): a record of {name} is a {type(record).__name__} without "
            f"parts; remove dataset.fields.{what}"
        )
    is_tuple = isinstance(record, tuple)
    keys = range(len(record)) if is_tuple else list(record)
    position = setting
    if position is None:
        position = number if is_tuple else next((key for key in usual if key in record), None)
    if position not in keys:
        shown = "null" if setting is None else setting
        raise ValueError(
            f"fields.{what} ({shown}): a record of {name} has no such part, it has "
            f"{', '.join(map(str, keys))}; add dataset.fields.{what}=<one of these>"
        )
    return position


def _label_kind(value: Any) -> tuple[str, tuple[int, ...]]:
    """Return what a label is, and its shape; see `Layout`."""
    array = np.asarray(value)
    if array.dtype.kind == "f" and array.size:
        return "number", array.shape
    is_several = array.dtype.kind in "biu" and array.size > 1
    return ("multilabel", array.shape) if is_several else ("class", ())


def part(record: Any, key: str | int | None) -> Any:
    """Return a part of a record, or raise a RecordError."""
    if key is None:
        return record
    try:
        return record[key]
    except (KeyError, IndexError, TypeError) as error:
        raise RecordError(f"has no {key!r}") from error


def encoded_image(value: Any) -> bytes | None:
    """Return the bytes of an image file that a value is or stands for; None: it is no image.

    A picture of Pillow becomes an uncompressed PNG, for pictures may differ in size. Of a mapping
    with `bytes` and `path`, as Hugging Face stores images, the file is read if there are no bytes.
    """
    if isinstance(value, Mapping) and {"bytes", "path"} <= value.keys():
        if value["bytes"] is None:
            with open(value["path"], "rb") as file:
                return file.read()
        value = value["bytes"]
    if isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
        return content if content.startswith(_SIGNATURES) else None
    if callable(getattr(value, "save", None)) and hasattr(value, "mode"):
        buffer = io.BytesIO()
        plain = value if value.mode in ("L", "RGB") else value.convert("RGB")
        plain.save(buffer, "PNG", compress_level=0)
        return buffer.getvalue()
    return None


def _image_size(content: bytes, name: str) -> tuple[tuple[int, int], int]:
    """Return (height, width) and the channels, 1 or 3, of an encoded image."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            return (image.height, image.width), 1 if image.mode in ("1", "L", "I;16") else 3
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{name}: record 0 holds a damaged image; repair or remove it") from error


def as_array(value: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    """Return a value as an array of numbers, of a shape if one is given.

    Numbers of Python become float32, so that 1 and 1.5 have one type.

    Raises:
        RecordError: it is invalid, or has another number of elements.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise RecordError("has features that are no array") from error
    if array.dtype.kind not in "biuf":
        raise RecordError(f"has features of type {type(value).__name__}, which are no numbers")
    if not hasattr(value, "dtype"):
        array = array.astype(np.float32)
    if shape is None:
        return array
    if array.size != np.prod(shape):
        raise RecordError(
            f"has {array.size} numbers, which do not fill {list(shape)} (dataset.fields.shape)"
        )
    return array.reshape(shape)


def label_of(value: Any, layout: Layout) -> np.ndarray:
    """Return the targets of an example as float32, or which labels it has as int64."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise RecordError("has a label that is no array") from error
    if array.dtype.kind not in "biuf" or array.shape != layout.label_shape:
        raise RecordError(
            f"has a label of {list(array.shape)} {array.dtype}, that of record 0 has the shape "
            f"{list(layout.label_shape)}"
        )
    if layout.label_kind == "number":
        if not np.isfinite(array).all():
            raise RecordError("has a label that is not finite")
        return array.astype(np.float32)
    if not np.isin(array, (0, 1)).all():
        raise RecordError("has several labels that are not all 0 or 1")
    return array.astype(np.int64)


def class_of(value: Any, class_names: Mapping[str, int] | None, num_classes: int) -> int:
    """Return the class of a label: an integer, also as an array of one, or a name.

    Raises:
        RecordError: it is invalid.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        if class_names is None:
            raise RecordError(
                f"has the label {value!r}; name the classes with dataset.fields.class_names=[...]"
            )
        if value not in class_names:
            raise RecordError(
                f"has the label {value!r}, which is not among the {len(class_names)} class names"
            )
        return class_names[value]
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biu":
        raise RecordError(f"has a label of type {type(value).__name__}, it must be one integer")
    label = int(array.reshape(()))
    if not 0 <= label < num_classes:
        raise RecordError(f"has the label {label}, it must be in 0..{num_classes - 1}")
    return label


@dataclass(frozen=True, kw_only=True)
class RecordReader:
    """Reads records of one source, many at a time by its `__getitems__`, in one thread at a time.

    Errors have no cause: of those that come out of a pipeline the user sees one line.
    The log has the traceback.
    """

    source: Any
    name: str
    layout: Layout
    num_classes: int
    class_names: dict[str, int] | None = None

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features and labels of the records `rows`, [B] int64.

        Returns:
            [B, *shape] in the layout's type, or of images [B] bytes; and [B, *label_shape] float32
            of numbers, else int64, 0 where records have no label.

        Raises:
            ValueError: a record cannot be read, or is not as the first; the message names it.
        """
        numbers = [int(row) for row in rows]
        records = self._records(numbers)
        pairs = [self._checked(row, record) for row, record in zip(numbers, records, strict=True)]
        labels = np.array([label for _, label in pairs], self.label_dtype)
        if self.layout.encoded:
            return np.array([features for features, _ in pairs], object), labels
        return np.stack([features for features, _ in pairs]), labels

    @property
    def label_dtype(self) -> Any:
        return np.float32 if self.layout.label_kind == "number" else np.int64

    def _records(self, rows: list[int]) -> Sequence[Any]:
        fetch_many = getattr(self.source, "__getitems__", None)
        if fetch_many is not None:
            try:
                return list(fetch_many(rows))
            except Exception:  # one of them is damaged: read one by one, which finds it
                pass
        return [self._record(row) for row in rows]

    def _record(self, row: int) -> Any:
        try:
            return self.source[row]
        except Exception as error:  # any exception of a library
            logger.info("%s: record %d cannot be read", self.name, row, exc_info=True)
            reason = first_line(error)
            raise ValueError(f"{self.name}: record {row} cannot be read: {reason}") from None

    def _checked(self, row: int, record: Any) -> tuple[Any, Any]:
        """Return features and label of a record that must look as the first one."""
        layout = self.layout
        try:
            value = part(record, layout.features)
            label: Any = 0
            if layout.label is not None:
                label = part(record, layout.label)
                if layout.label_kind == "class":
                    label = class_of(label, self.class_names, self.num_classes)
                else:
                    label = label_of(label, layout)
            if not layout.encoded:
                return self._array(value), label
            content = encoded_image(value)
            # Other bytes are a damaged image, which the graph finds.
            return value if content is None and isinstance(value, bytes) else content or b"", label
        except (RecordError, OSError) as error:
            raise ValueError(f"{self.name}: record {row} {error}") from None

    def _array(self, value: Any) -> np.ndarray:
        layout = self.layout
        array = as_array(value, None if np.shape(value) == layout.shape else layout.shape)
        if array.dtype != layout.dtype:
            raise RecordError(
                f"has features of {array.dtype}, those of record 0 are {layout.dtype}"
            )
        return array
