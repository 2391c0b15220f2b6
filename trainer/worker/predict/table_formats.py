"""The formats of a table of predictions, CSV and Parquet, with the same columns and values.

The columns are `id`, `label` and `label_name` if known, `predicted` and `predicted_name` of a
classifier, then every predicted number, such as `probability_0`. Of numbers they are `target` and
`prediction`; of several targets or labels each column ends in the name of its target or label. The
predictions of an example that could not be read are empty.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.engine.evaluation.row_metrics import predicted_classes
from trainer.files import fsync_directory, writing

Column = tuple[Any, np.ndarray]
"""The values of a column, [n], and which of them are not empty, [n] bool."""

Blocks = Callable[[int], Iterator[dict[str, Column]]]
"""Yields the table in blocks of about so many numbers."""

# Numbers in memory at a time; a Parquet row group has as many.
_CSV_NUMBERS = 2**18
_PARQUET_NUMBERS = 2**22


def columns(
    rows: np.ndarray,
    ids: Sequence[Any],
    class_names: Sequence[str],
    paths: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Column]:
    """Return the columns of some rows.

    Args:
        rows: a structured array, [n], with `weight`, maybe `label`, and the predictions.
        class_names: the names of the classes; may be empty.
        paths: the files of the predictions that are written to files, name -> [n].
    """
    present = rows["weight"] > 0
    fields = rows.dtype.names or ()
    paths = paths or {}
    everywhere = np.ones(len(rows), bool)
    table: dict[str, Column] = {"id": (ids, everywhere)}
    if "label" in fields:
        labels = rows["label"]
        is_class = labels.ndim == 1 and labels.dtype.kind != "f"
        stem = "target" if labels.dtype.kind == "f" else "label"
        of_labels = _classes if is_class else _numbers
        table |= of_labels(stem, labels, everywhere, class_names)
    if "probabilities" in fields and "predicted" not in fields:
        predicted = predicted_classes(rows["probabilities"])
        table |= _classes("predicted", predicted, present & (predicted >= 0), class_names)
    others = [name for name in fields if name not in ("weight", "label")]
    for name in sorted(others, key=lambda name: name != "predicted"):  # first, as of a classifier
        if name in paths:
            table[name] = paths[name], present
            continue
        stem = "probability" if name == "probabilities" else name
        names = class_names if "predicted" in fields or name == "prediction" else ()
        table |= _numbers(stem, rows[name], present, names)
    return table


def _classes(
    title: str, classes: np.ndarray, present: np.ndarray, class_names: Sequence[str]
) -> dict[str, Column]:
    """Return a column of classes, and one of their names if they have some."""
    table: dict[str, Column] = {title: (classes, present)}
    if len(class_names):
        table[f"{title}_name"] = np.array(class_names, object)[classes], present
    return table


def _numbers(
    stem: str, values: np.ndarray, present: np.ndarray, names: Sequence[str]
) -> dict[str, Column]:
    """Return a column for each number of an example.

    Args:
        stem: the title of a single one; of several that starts with it.
        values: [n, ...].
        present: which examples have values, [n] bool.
        names: what the titles of several numbers end in; if there is not one for each, that is the
            place of the number.
    """
    numbers = values.reshape(len(values), -1).T
    ends = list(names) if len(names) == len(numbers) else list(map(str, range(len(numbers))))
    is_single = values.ndim == 1 or (len(numbers) == 1 and stem in ("target", "prediction"))
    titles = [stem] if is_single else [f"{stem}_{end}" for end in ends]
    return {title: (column, present) for title, column in zip(titles, numbers, strict=True)}


def text_columns(
    rows: np.ndarray, ids: Sequence[Any], decode: Callable[[Sequence[int]], str]
) -> dict[str, Column]:
    """Return the columns of some rows of a language model: `id`, `prompt` and `text`.

    Args:
        rows: a structured array, [n], with tokens `prompt`, of which the first `prompt_size` count,
            and `text`, those that follow.
    """
    prompts = [decode(row["prompt"][: row["prompt_size"]].tolist()) for row in rows]
    texts = [decode(row["text"].tolist()) for row in rows]
    columns = {"id": ids, "prompt": np.array(prompts, object), "text": np.array(texts, object)}
    return {name: (values, np.ones(len(rows), bool)) for name, values in columns.items()}


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
