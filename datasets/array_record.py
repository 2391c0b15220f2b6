"""ArrayRecord files: records of bytes that are read by their index."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from trainer.annotations import Free, Gt, Lt, Structural, takes
from trainer.datasets.images.images import ImageDataset, ImageOptions
from trainer.datasets.indexed import Sources, from_sources
from trainer.datasets.records.fields import Fields
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.datasets.splits.paths import find_files, find_splits
from trainer.optional_packages import import_extra

_SUFFIXES = (".array_record", ".arrayrecord")


class ArrayRecordSource:
    """A source of the records of several ArrayRecord files, one after the other."""

    def __init__(self, files: Sequence[Path], parse: Callable[[bytes], Any]) -> None:
        """Open the files.

        Raises:
            ValueError: a file cannot be read, or the package is missing.
        """
        module = import_extra(
            "array_record.python.array_record_data_source", "array_record", "dataset=array_record"
        )
        sources = [_open(module.ArrayRecordDataSource, file) for file in files]
        self._files = [file for file, source in zip(files, sources, strict=True) if len(source)]
        self._ends = list(itertools.accumulate(len(source) for source in sources if len(source)))
        self._parse = parse
        self._records = module.ArrayRecordDataSource([str(file) for file in self._files or files])

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        try:
            content = self._records[index]
        except Exception as error:  # the library raises RuntimeError, often without a text
            number = bisect.bisect_right(self._ends, index)
            raise ValueError(f"{self._files[number]} is damaged") from error
        return self._parse(content)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self._parse(content) for content in self._records.__getitems__(indices)]


@takes(ImageOptions)
def array_record(
    options: ImageOptions,
    *,
    path: Annotated[str | None, Free(names_run=True)] = None,
    test_path: Annotated[str | None, Free(names_run=True)] = None,
    parse: Callable[[bytes], Any] | None = None,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    fields: Annotated[Fields | None, Structural()] = None,
) -> ImageDataset | ArrayDataset:
    """Records of ArrayRecord files; each is a `tf.train.Example`, or what `parse` makes of it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file cannot be read, or the package array_record is missing.
    """
    splits = find_splits(path, test_path, partial(find_files, suffixes=_SUFFIXES))
    found = splits.present
    return from_sources(
        Sources(
            **{
                name: ArrayRecordSource(files, parse or example)
                for name, (_, files) in found.items()
            },
            test_fraction=test_fraction,
            names={name: str(root) for name, (root, _) in found.items()},
            # Nothing shows when the function changes.
            files=() if parse else [file for _, files in found.values() for file in files],
        ),
        fields or Fields(),
        options,
    )


def example(content: bytes) -> Mapping[str, Any]:
    """Return the features of a serialized `tf.train.Example` by name.

    Bytes are `bytes`; numbers are int64 or float32, an array where there are several.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(content).features.feature
    except DecodeError as error:
        raise ValueError(
            "it is no tf.train.Example; name a function that reads it with dataset.parse"
        ) from error
    return {name: _values(feature) for name, feature in features.items()}


def _values(feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else ()
    if kind == "bytes_list":
        return values[0] if len(values) == 1 else list(values)
    array = np.array(values, np.int64 if kind == "int64_list" else np.float32)
    return array[0] if len(array) == 1 else array


def _open(source: Callable[[list[str]], Any], file: Path) -> Any:
    """Open one file alone, so that the message can name it."""
    try:
        return source([str(file)])
    except Exception as error:  # the library raises RuntimeError, often without a text
        reason = (str(error).strip() or "it is damaged, or cut short").splitlines()[0]
        raise ValueError(f"{file} cannot be read as an ArrayRecord file: {reason}") from error
