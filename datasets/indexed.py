"""Any object with `__len__` and `__getitem__`, such as the data sources of other libraries."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.annotations import Free, Ge, Gt, Lt, Structural, takes
from trainer.datasets.images.image_files import RecordSplit
from trainer.datasets.images.images import ImageDataset, ImageOptions
from trainer.datasets.records.fields import Fields, Layout, RecordReader
from trainer.datasets.records.reading_processes import ReadingProcesses
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.datasets.splits.paths import divided, files_identity, hash_numbers
from trainer.text import first_line

Read: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""`RecordReader.read`, or what calls it: safe for threads."""


@takes(ImageOptions)
def indexed(
    options: ImageOptions,
    *,
    train_source: Any,
    test_source: Any = None,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    processes: Annotated[int, Ge(0), Free()] = 0,
    fields: Annotated[Fields | None, Structural()] = None,
) -> ImageDataset | ArrayDataset:
    """Records of any object with `__len__` and `__getitem__`, or `__getitems__` for a batch.

    A record is a mapping, a tuple, or the features alone. Features are an array of numbers, a
    picture of Pillow, or the bytes of an image file, which are decoded in the graph. The same index
    must always return the same record. The object is called by one thread at a time; with
    `processes` a copy of it, made by pickle, in each.

    Raises:
        ValueError: an object is no such source, or its first record is not usable.
    """
    return from_sources(
        Sources(train_source, test_source, test_fraction=test_fraction),
        fields or Fields(),
        options,
        processes=processes,
    )


@dataclass(frozen=True)
class Sources:
    """The objects that a dataset reads from, and their facts about the records.

    Attributes:
        test: the object to test on; None: a part of `train`, or with `validation` nothing.
        files: the files and folders that records come from; (): a source lists them by a method
            `identity()` when its records change.
    """

    train: Any
    test: Any | None = None
    test_fraction: float = 0.1
    validation: Any | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    files: Sequence[Path] = ()

    def __post_init__(self) -> None:
        for split, source in self.present.items():
            for method in ("__len__", "__getitem__"):
                if not hasattr(source, method):
                    raise ValueError(
                        f"{self.name(split)} ({type(source).__name__}) has no {method}; "
                        "it must return records by their index"
                    )
            if len(source) == 0:
                raise ValueError(f"{self.name(split)} ({type(source).__name__}) is empty")

    @property
    def present(self) -> dict[str, Any]:
        """The objects that there are, by split."""
        sources = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: source for split, source in sources.items() if source is not None}

    def name(self, split: str) -> str:
        """Return the name of the object of a split, for messages."""
        split = split if split in self.present else "train"
        return self.names.get(split, f"{split}_source")

    def identity(self, split: str) -> str:
        """Return a text that changes with the records of a split, or raise a ValueError."""
        if self.files:
            return f"{files_identity(self.files)} {split} {self.name(split)}"
        source = self.present.get(split, self.train)
        try:
            return f"{source.identity()} {split}"
        except AttributeError as error:
            raise ValueError(
                f"cache: {self.name(split)} ({type(source).__name__}) does not show when its "
                "records change; give it a method identity() that returns a text, or set "
                "dataset.cache=none"
            ) from error

    def rows(self) -> dict[str, np.ndarray | None]:
        """Return the records of each split, [N] int64; None: all of its source."""
        if len(self.present) > 1:
            return {"test": np.zeros(0, np.int64), **dict.fromkeys(self.present)}
        numbers = {"train": np.arange(len(self.train))}
        what = f"records of {self.name('train')}"
        return divided(numbers, hash_numbers, self.test_fraction, what, np.take)


def from_sources(
    sources: Sources,
    fields: Fields,
    options: ImageOptions,
    *,
    processes: int = 0,
) -> ImageDataset | ArrayDataset:
    """Return a dataset of sources; the options are those of `indexed`.

    Raises:
        ValueError: the first record is not usable, or the number of classes is unknown.
    """
    layout = fields.layout(_first_record(sources), sources.name("train"))
    if not layout.encoded and (options.crop is not None or options.antialias):
        raise ValueError("crop and antialias are for the files of images, the records hold none")
    names = fields.class_names or sources.class_names
    num_classes = _num_classes(sources, fields, layout)
    rows = sources.rows()
    readers = [
        RecordReader(
            source=sources.present.get(split, sources.train),
            name=sources.name(split),
            layout=layout,
            num_classes=num_classes,
            class_names=names and {name: label for label, name in enumerate(names)},
        )
        for split in rows
    ]
    splits = {
        split: SourceSplit(
            reader,
            rows[split],
            read=read,
            source_identity=partial(sources.identity, split),
            **options.reading(split),
        )
        for split, reader, read in zip(rows, readers, _safe_reads(readers, processes), strict=True)
    }
    shared: dict[str, Any] = {
        "num_classes": num_classes,
        "class_names": names,
        "label_kind": layout.label_kind,
    }
    if _is_image(layout):
        size = None if layout.encoded else fields.image_size
        return options.dataset(splits, image_shape=layout.shape, image_size=size, **shared)
    return options.numbers(splits, input_shape=layout.shape, **shared)


class SourceSplit(RecordSplit):
    """A split of a source's records.

    Args:
        rows: their numbers, [N] int64; None: all of them.
        read: reads records of the source, with `reader`.
        source_identity: returns a text that changes with the source's records.
    """

    def __init__(
        self,
        reader: RecordReader,
        rows: np.ndarray | None,
        *,
        read: Read,
        source_identity: Callable[[], str],
        **options: Any,
    ) -> None:
        layout = reader.layout
        count = len(reader.source) if rows is None else len(rows)
        super().__init__(count, layout.shape if layout.encoded else None, **options)
        self._reader = reader
        self._rows = rows
        self._read_records = read
        self._source_identity = source_identity

    @property
    def labels(self) -> np.ndarray | None:
        """The labels of all examples, [N], if the source has them as an array; else None."""
        labels = getattr(self._reader.source, "labels", None)
        if not isinstance(labels, np.ndarray) or self._reader.layout.label is None:
            return None
        return np.asarray(labels if self._rows is None else labels[self._rows])

    def content_identity(self) -> str:
        reader = self._reader
        rows = "" if self._rows is None else hashlib.sha256(self._rows.tobytes()).hexdigest()
        labels = reader.num_classes, reader.class_names
        return f"{self._source_identity()} {rows} {reader.layout} {labels}"

    def name(self, index: int) -> str:
        row = index if self._rows is None else self._rows[index]
        return f"record {row} of {self._reader.name}"

    def read(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, None]:
        layout = self._reader.layout
        types = [tf.string if layout.encoded else layout.dtype, self._reader.label_dtype]
        features, label = tf.numpy_function(
            lambda numbers: self._read_records(
                numbers if self._rows is None else self._rows[numbers]
            ),
            [indices],
            types,
        )
        features.set_shape([*indices.shape, *(() if layout.encoded else layout.shape)])
        label.set_shape([*indices.shape, *layout.label_shape])
        return features, None if layout.label is None else label, None


def _safe_reads(readers: Sequence[RecordReader], processes: int) -> list[Read]:
    """Return a function for each reader that several threads may call.

    Python runs one thread at a time anyway; decoding, in the graph, continues meanwhile.
    """
    if processes:
        pool = ReadingProcesses(readers, processes)
        return [partial(pool.read, number) for number in range(len(readers))]
    lock = threading.Lock()

    def locked(reader: RecordReader, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with lock:
            return reader.read(rows)

    return [partial(locked, reader) for reader in readers]


def _num_classes(sources: Sources, fields: Fields, layout: Layout) -> int:
    """Return the number of classes, targets or labels; 1 where records have no label."""
    names = fields.class_names or sources.class_names
    if layout.label_kind != "class":
        count = int(np.prod(layout.label_shape))
        wanted = fields.num_classes or (len(names) if names else count)
        if wanted != count:
            raise ValueError(
                f"fields.num_classes or class_names tell of {wanted}, but the label of record 0 "
                f"has {count} numbers; remove them from dataset.fields"
            )
        return count
    number = fields.num_classes or (len(names) if names else sources.num_classes)
    if number is None and layout.label is not None:
        raise ValueError(
            "fields.num_classes (null) must be set, because the source does not declare it; "
            "add dataset.fields.num_classes=<int>"
        )
    return number or 1


def _first_record(sources: Sources) -> Any:
    try:
        return sources.train[0]
    except Exception as error:  # any exception of a library
        reason = first_line(error)
        raise ValueError(f"{sources.name('train')}: record 0 cannot be read: {reason}") from error


def _is_image(layout: Layout) -> bool:
    return layout.dtype == np.uint8 and len(layout.shape) == 3 and layout.shape[2] in (1, 3)
