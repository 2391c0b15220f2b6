"""The forms of a table of predictions: CSV and Parquet. They have the same columns, and hold the same bits.

`id`, `label` and `label_name` if known, `predicted` and `predicted_name` of a classifier, then every number that is predicted, such as
`probability_0`. What is predicted of an example that could not be read is empty.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.files import fsync_directory, writing

Column = tuple[Any, np.ndarray]
"""The values of a column, [n], and which of them are there, [n] bool."""

Blocks = Callable[[int], Iterator[dict[str, Column]]]
"""Gives the table in blocks of about so many numbers."""

_CSV_NUMBERS, _PARQUET_NUMBERS = 2**18, 2**22  # in memory at a time; of Parquet a row group


def columns(rows: np.ndarray, ids: Sequence[Any], class_names: Sequence[str]) -> dict[str, Column]:
    """Gives the columns of some rows.

    Args:
        rows: a structured array with `weight`, maybe `label`, and what was predicted.
        ids: the examples' ids.
        class_names: the names of the classes, if there are any.
    """
    names = np.array(class_names, object)
    known, everything = rows["weight"] > 0, np.ones(len(rows), bool)
    found: dict[str, Column] = {"id": (ids, everything)}
    classes = {}
    if "label" in (rows.dtype.names or ()):
        classes["label"] = (rows["label"], everything)
    if "probabilities" in (rows.dtype.names or ()):
        classes["predicted"] = (rows["probabilities"].argmax(axis=-1), known)
    for name, (values, there) in classes.items():
        found[name] = values, there
        if len(names):
            found[f"{name}_name"] = names[values], there
    for name in rows.dtype.names or ():
        if name not in ("weight", "label"):
            word = "probability" if name == "probabilities" else name
            numbers = rows[name].reshape(len(rows), -1).T
            titles = [word] if rows[name].ndim == 1 else [f"{word}_{number}" for number in range(len(numbers))]
            found |= {title: (values, known) for title, values in zip(titles, numbers, strict=True)}
    return found


def write_csv(path: Path, blocks: Blocks) -> Iterator[None]:
    """Writes a table, and yields after each of its blocks. Numbers read back as they were, to the bit."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for number, block in enumerate(blocks(_CSV_NUMBERS)):
            if number == 0:
                writer.writerow(block)
            writer.writerows(zip(*(_texts(*column) for column in block.values()), strict=True))
            yield
        file.flush()
        os.fsync(file.fileno())


def write_parquet(path: Path, blocks: Blocks) -> Iterator[None]:
    """Writes a table, a row group for each of its blocks, and yields after each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for block in blocks(_PARQUET_NUMBERS):
            table = pa.table({name: pa.array(values, mask=~there) for name, (values, there) in block.items()})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table, row_group_size=len(table))
            yield
    finally:
        if writer is not None:
            writer.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())


WRITE = {"csv": write_csv, "parquet": write_parquet}


def write(form: str, path: Path, blocks: Blocks) -> Iterator[None]:
    """Writes a table in one of the forms, which is there when all is done and not before; yields after each of its blocks.

    Raises:
        StorageError: it could not be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        yield from WRITE[form](temporary, blocks)
        os.replace(temporary, path)
        fsync_directory(path.parent)


def _texts(values: Any, there: np.ndarray) -> Sequence[str]:
    # NumPy words a number of each type as shortly as it can be told from all others of that type.
    texts = np.asarray(values).astype(str).astype(object)
    texts[~there] = ""
    return texts.tolist()
