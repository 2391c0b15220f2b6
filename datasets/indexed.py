"""Any object with `__len__` and `__getitem__`, such as the data sources of other libraries."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from trainer.annotations import Free, Ge, Gt, Lt, Structural, takes
from trainer.datasets.cache.example_cache import with_cache
from trainer.datasets.images.image_files import CorruptFiles
from trainer.datasets.images.images import ImageDataset, ImageOptions
from trainer.datasets.records.fields import Fields, Layout
from trainer.datasets.records.indexed_split import IndexedSplit, Read
from trainer.datasets.records.reading_processes import ReadingProcesses
from trainer.datasets.records.record_reader import Indexable, RecordReader
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.datasets.splits.hashed_split import divide, hash_numbers
from trainer.datasets.splits.paths import files_identity
from trainer.text import first_line


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

    Args:
        options: those for images. With a cache the objects have `identity()`, a text that changes
            with the records.
        train_source: the object to train on.
        test_source: the object to test on; None: a part of train_source.
        test_fraction: about which share of train_source to test on if there is no test_source.
        processes: how many processes read records, where Python code of the source is the limit; 0:
            each process that trains reads its own.
        fields: which parts of a record are used.

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
    """The objects that a dataset reads from, and what they know of their records.

    Attributes:
        train: the object to train on.
        test: the object to test on; None: a part of `train`.
        test_fraction: which part.
        names: names of both, for messages.
        num_classes: how many classes there are; None: unknown.
        class_names: their names; None: unknown.
        files: the files and folders that records come from; (): a source tells by a method
            `identity()` when its records change.
        parts: which parts of the files the sources are, such as splits of a data set.
    """

    train: Indexable
    test: Indexable | None
    test_fraction: float = 0.1
    names: tuple[str, str] = ("train_source", "test_source")
    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    files: Sequence[Path] = ()
    parts: tuple[str, str] = ("train", "test")

    def __post_init__(self) -> None:
        for name, source in zip(self.names, (self.train, self.test), strict=True):
            if source is None and name == self.names[1]:
                continue
            for method in ("__len__", "__getitem__"):
                if not hasattr(source, method):
                    raise ValueError(
                        f"{name} ({type(source).__name__}) has no {method}; "
                        "it must return records by their index"
                    )
            if len(source) == 0:
                raise ValueError(f"{name} ({type(source).__name__}) is empty")

    def identity(self, number: int) -> str:
        """Return a text that changes with the records of a source, 0: `train`, 1: `test`.

        Raises:
            ValueError: nothing tells.
        """
        if self.files:
            return f"{files_identity(self.files)} {self.parts[number]}"
        source: Any = self.train if number == 0 or self.test is None else self.test
        try:
            return f"{source.identity()} {self.parts[number]}"
        except AttributeError as error:
            raise ValueError(
                f"cache: {self.names[number]} ({type(source).__name__}) does not tell when its "
                "records change; give it a method identity() that returns a text, or set "
                "dataset.cache=none"
            ) from error

    def rows(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the records of both splits, [N] int64; None: all of the source."""
        if self.test is not None:
            return None, None
        hashes = hash_numbers(np.arange(len(self.train)))
        return divide(hashes, self.test_fraction, "records", self.names[0])


def from_sources(
    sources: Sources,
    fields: Fields,
    options: ImageOptions,
    *,
    processes: int = 0,
) -> ImageDataset | ArrayDataset:
    """Return a dataset of two sources; the options are those of `indexed`.

    Raises:
        ValueError: the first record is not usable, or the number of classes is unknown.
    """
    layout = fields.layout(_first_record(sources), sources.names[0])
    _check_options(options, layout)
    readers = _readers(sources, fields, layout)
    corrupt = CorruptFiles(options.max_corrupt_records)
    framings = options.train_framing, options.framing
    train, test = (
        IndexedSplit(
            reader,
            rows,
            read=read,
            framing=framing,
            corrupt=corrupt,
            source_identity=partial(sources.identity, number),
        )
        for number, (reader, rows, read, framing) in enumerate(
            zip(readers, sources.rows(), _safe_reads(readers, processes), framings, strict=True)
        )
    )
    shared: dict[str, Any] = {
        "num_classes": readers[0].num_classes,
        "class_names": fields.class_names or sources.class_names,
        "label_kind": layout.label_kind,
        "normalize": options.normalize,
    }
    if _is_image(layout):
        images = ImageDataset(
            train=train,
            test=test,
            image_shape=layout.shape,
            image_size=None if layout.encoded else fields.image_size,
            framing=options.framing,
            augment=options.augment,
            **shared,
        )
        return with_cache(images, options.cache)
    arrays = ArrayDataset(train=train, test=test, input_shape=layout.shape, **shared)
    return with_cache(arrays, options.cache)


def _check_options(options: ImageOptions, layout: Layout) -> None:
    """Raise if an option for images is set, and records hold none."""
    if not layout.encoded and (options.crop is not None or options.antialias):
        raise ValueError("crop and antialias are for the files of images, the records hold none")
    if not _is_image(layout) and options.augment is not None and options.augment.num_draws:
        raise ValueError(
            f"augment is for images, the features are {list(layout.shape)} {layout.dtype}; "
            "leave it out"
        )


def _readers(sources: Sources, fields: Fields, layout: Layout) -> list[RecordReader]:
    """Return the readers of both splits; the second is the first where they have one source."""
    names = fields.class_names or sources.class_names
    reader = RecordReader(
        source=sources.train,
        name=sources.names[0],
        layout=layout,
        num_classes=_num_classes(sources, fields, layout),
        class_names=None if names is None else {name: label for label, name in enumerate(names)},
    )
    if sources.test is None:
        return [reader, reader]
    return [reader, replace(reader, source=sources.test, name=sources.names[1])]


def _safe_reads(readers: Sequence[RecordReader], processes: int) -> list[Read]:
    """Return a function for each reader that several threads may call.

    Python runs one thread at a time anyway; decoding, in the graph, goes on meanwhile.
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
            "fields.num_classes (null) must be set, for the source does not tell how many classes "
            "there are; add dataset.fields.num_classes=<int>"
        )
    return number or 1


def _first_record(sources: Sources) -> Any:
    try:
        return sources.train[0]
    except Exception as error:  # whatever a library raises
        reason = first_line(error)
        raise ValueError(f"{sources.names[0]}: record 0 cannot be read: {reason}") from error


def _is_image(layout: Layout) -> bool:
    return layout.dtype == np.uint8 and len(layout.shape) == 3 and layout.shape[2] in (1, 3)
