"""Any object with `__len__` and `__getitem__`, such as the data sources of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from trainer.datasets.arrays import ArrayDataset
from trainer.datasets.augment import Augmentation
from trainer.datasets.fields import Fields, Layout
from trainer.datasets.framing import Framing
from trainer.datasets.hashed_split import divide, hash_numbers
from trainer.datasets.image_files import CorruptFiles
from trainer.datasets.images import ImageDataset
from trainer.datasets.indexed_split import Indexable, IndexedSplit, RecordReader
from trainer.datasets.normalise import Normalisation


def indexed(
    *,
    train_source: Any,
    test_source: Any = None,
    test_fraction: Annotated[float, "> 0, < 1"] = 0.1,
    max_corrupt_records: Annotated[int, ">= 0"] = 0,
    fields: Fields | None = None,
    augment: Augmentation | None = None,
    normalise: Normalisation | None = None,
) -> ImageDataset | ArrayDataset:
    """Records of any object with `__len__` and `__getitem__`, or `__getitems__` for a batch.

    A record is a mapping, a tuple, or the features alone. Features are an array of numbers, a
    picture of Pillow, or the bytes of an image file, which are decoded in the graph. The same index
    must always return the same record. The object is called by one thread at a time.

    Args:
        train_source: the object to train on.
        test_source: the object to test on; None: a part of train_source.
        test_fraction: about which share of train_source to test on if there is no test_source.
        max_corrupt_records: how many damaged images each process skips before it is an error.
        fields: which parts of a record are used.
        augment: random changes of images in training.
        normalise: what is subtracted from the features and what they are divided by.

    Raises:
        ValueError: an object is no such source, or its first record is not usable.
    """
    return from_sources(
        Sources(train_source, test_source, test_fraction=test_fraction),
        fields or Fields(),
        max_corrupt_records=max_corrupt_records,
        augment=augment,
        normalise=normalise,
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
    """

    train: Indexable
    test: Indexable | None
    test_fraction: float = 0.1
    names: tuple[str, str] = ("train_source", "test_source")
    num_classes: int | None = None
    class_names: Sequence[str] | None = None

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

    def rows(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the records of both splits, [N] int64; None: all of the source."""
        if self.test is not None:
            return None, None
        hashes = hash_numbers(np.arange(len(self.train)))
        return divide(hashes, self.test_fraction, "records", self.names[0])


def from_sources(
    sources: Sources,
    fields: Fields,
    *,
    max_corrupt_records: int = 0,
    augment: Augmentation | None = None,
    normalise: Normalisation | None = None,
) -> ImageDataset | ArrayDataset:
    """Return a dataset of two sources.

    Args:
        sources: the sources.
        fields: which parts of their records are used.
        max_corrupt_records: how many damaged images may be skipped.
        augment: random changes of images in training.
        normalise: what is subtracted from the features and what they are divided by.

    Raises:
        ValueError: the first record is not usable, or the number of classes is unknown.
    """
    layout = fields.layout(_first_record(sources), sources.names[0])
    min_area = 0.0 if augment is None else augment.min_area
    train, test = _splits(sources, fields, layout, min_area, max_corrupt_records)
    if _is_image(layout):
        return ImageDataset(
            train=train,
            test=test,
            image_shape=layout.shape,
            num_classes=_num_classes(sources, fields, layout),
            class_names=fields.class_names or sources.class_names,
            label_kind=layout.label_kind,
            image_size=None if layout.encoded else fields.image_size,
            augment=augment,
            normalise=normalise,
        )
    if augment is not None and augment.num_draws:
        raise ValueError(
            f"augment is for images, the features are {list(layout.shape)} {layout.dtype}; "
            "leave it out"
        )
    return ArrayDataset(
        train=train,
        test=test,
        input_shape=layout.shape,
        num_classes=_num_classes(sources, fields, layout),
        class_names=fields.class_names or sources.class_names,
        label_kind=layout.label_kind,
        normalise=normalise,
    )


def _splits(
    sources: Sources, fields: Fields, layout: Layout, min_area: float, max_corrupt_records: int
) -> tuple[IndexedSplit, IndexedSplit]:
    names = fields.class_names or sources.class_names
    reader = RecordReader(
        source=sources.train,
        name=sources.names[0],
        layout=layout,
        num_classes=_num_classes(sources, fields, layout),
        class_names=None if names is None else {name: label for label, name in enumerate(names)},
    )
    test_reader = reader
    if sources.test is not None:
        test_reader = replace(reader, source=sources.test, name=sources.names[1])
    train_rows, test_rows = sources.rows()
    corrupt = CorruptFiles(max_corrupt_records, "max_corrupt_records")
    return (
        IndexedSplit(reader, train_rows, framing=Framing(min_area=min_area), corrupt=corrupt),
        IndexedSplit(test_reader, test_rows, framing=Framing(), corrupt=corrupt),
    )


def _num_classes(sources: Sources, fields: Fields, layout: Layout) -> int:
    """Return the number of classes, targets or labels; 1 where records have no label.

    Raises:
        ValueError: nothing tells it, or a record has another number of targets or labels.
    """
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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{sources.names[0]}: record 0 cannot be read: {reason}") from error


def _is_image(layout: Layout) -> bool:
    return layout.dtype == np.uint8 and len(layout.shape) == 3 and layout.shape[2] in (1, 3)
