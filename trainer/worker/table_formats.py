"""The formats of a table of predictions, CSV and Parquet, with the same columns and values.

The columns are `id`, `label` and `label_name` if known, `predicted` and `predicted_name` of a
classifier, then every predicted number, such as `probability_0`. The predictions of an example that
could not be read are empty.
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
"""The values of a column, [n], and which of them are not empty, [n] bool."""

Blocks = Callable[[int], Iterator[dict[str, Column]]]
"""Yields the table in blocks of about so many numbers."""

# Numbers in memory at a time; a Parquet row group has as many.
_CSV_NUMBERS = 2**18
_PARQUET_NUMBERS = 2**22


def columns(rows: np.ndarray, ids: Sequence[Any], class_names: Sequence[str]) -> dict[str, Column]:
    """Return the columns of some rows.

    Args:
        rows: a structured array, [n], with `weight`, maybe `label`, and the predictions.
        ids: the examples' ids.
        class_names: the names of the classes; may be empty.
    """
    names = np.array(class_names, object)
    readable = rows["weight"] > 0
    all_rows = np.ones(len(rows), bool)
    table: dict[str, Column] = {"id": (ids, all_rows)}
    classes = {}
    if "label" in (rows.dtype.names or ()):
        classes["label"] = (rows["label"], all_rows)
    if "probabilities" in (rows.dtype.names or ()):
        classes["predicted"] = (rows["probabilities"].argmax(axis=-1), readable)
    for name, (values, present) in classes.items():
        table[name] = values, present
        if len(names):
            table[f"{name}_name"] = names[values], present
    for name in rows.dtype.names or ():
        if name not in ("weight", "label"):
            stem = "probability" if name == "probabilities" else name
            numbers = rows[name].reshape(len(rows), -1).T
            titles = [f"{stem}_{index}" for index in range(len(numbers))]
            if rows[name].ndim == 1:
                titles = [stem]
            for title, values in zip(titles, numbers, strict=True):
                table[title] = values, readable
    return table


def write_csv(path: Path, blocks: Blocks) -> Iterator[None]:
    """Write a table; yield after each block. Numbers are read back to the bit."""
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
    """Write a table with a row group for each block; yield after each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for block in blocks(_PARQUET_NUMBERS):
            table = pa.table(
                {name: pa.array(values, mask=~present) for name, (values, present) in block.items()}
            )
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table, row_group_size=len(table))
            yield
    finally:
        if writer is not None:
            writer.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())


WRITE = {"csv": write_csv, "parquet": write_parquet}


def write(format_name: str, path: Path, blocks: Blocks) -> Iterator[None]:
    """Write a table, which appears when all of it is written; yield after each block.

    Raises:
        StorageError: it could not be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        yield from WRITE[format_name](temporary, blocks)
        os.replace(temporary, path)
        fsync_directory(path.parent)


def _texts(values: Any, present: np.ndarray) -> Sequence[str]:
    # NumPy writes the shortest text that is read back as the same number of that type.
    texts = np.asarray(values).astype(str).astype(object)
    texts[~present] = ""
    return texts.tolist()
