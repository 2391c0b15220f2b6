"""Reading of CSV and Parquet files, a part at a time, with the place of every row."""

from __future__ import annotations

import csv
import functools
import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from trainer.datasets.splits.extras import import_extra
from trainer.text import first_line

logger = logging.getLogger(__name__)

ROWS = 1 << 16
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class Rows:
    """Some rows of a file, by column.

    Attributes:
        columns: name -> [N], of texts (dtype object, "" is missing), float64 (NaN is missing) or
            datetime64 (NaT is missing).
        file: the file.
        numbers: [N], the line of each row in a CSV file, or its number in a Parquet file, from 1.
    """

    columns: dict[str, np.ndarray]
    file: Path
    numbers: Sequence[int]

    def place(self, row: int) -> str:
        """Return where row `row` stands, for messages."""
        unit = "row" if self.file.suffix == ".parquet" else "line"
        return f"{self.file}, {unit} {self.numbers[row]}"


def column_names(file: Path, delimiter: str) -> list[str]:
    """Return the names of the columns of a file.

    Raises:
        ValueError: it cannot be read, or a name stands twice.
    """
    if file.suffix == ".parquet":
        names = list(_open_parquet(file).schema_arrow.names)
    else:
        with _open_text(file) as text:
            names = next(_lines(text, file, delimiter), ([], 0))[0]
    if not names:
        raise ValueError(f"{file} is empty; its first line must name the columns")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{file} has several columns {twice[0]!r}; rename them")
    return names


def read_rows(
    files: Sequence[Path],
    names: Sequence[str],
    delimiter: str,
    missing: Collection[str],
    *,
    has_texts: bool = False,
) -> Iterator[Rows]:
    """Read some columns of files.

    Args:
        files: CSV or Parquet files.
        names: the columns that are read.
        delimiter: between the fields of a line.
        missing: texts that stand for a missing value.
        has_texts: whether values are expected to have line breaks; otherwise a warning tells of
            them, for a quotation mark in the wrong place makes one row of several.

    Raises:
        ValueError: a file is damaged, or lacks a column; the message names file and line.
    """
    for file in files:
        available = column_names(file, delimiter)
        if lacking := [name for name in names if name not in available]:
            raise ValueError(f"{file} has no column {lacking[0]!r}, it has {', '.join(available)}")
        if file.suffix == ".parquet":
            yield from _parquet_rows(file, names, missing)
        else:
            yield from _csv_rows(file, names, delimiter, missing, has_texts)


def _csv_rows(
    file: Path, names: Sequence[str], delimiter: str, missing: Collection[str], has_texts: bool
) -> Iterator[Rows]:
    with _open_text(file) as text:
        lines = _lines(text, file, delimiter)
        header, _ = next(lines)
        places = [header.index(name) for name in names]
        fields: list[list[str]] = []
        numbers: list[int] = []
        for line, number in lines:
            if len(line) != len(header):
                raise ValueError(
                    f"{file}, line {number}: {len(line)} fields, the header has {len(header)}; "
                    "repair or remove the line"
                )
            if not has_texts and any("\n" in field for field in line):
                _warn_of_line_break(file, number)
            fields.append(line)
            numbers.append(number)
            if len(fields) == ROWS:
                yield _rows(file, names, places, fields, numbers, missing)
                fields, numbers = [], []
        if fields:
            yield _rows(file, names, places, fields, numbers, missing)


@functools.cache  # a file is read several times
def _warn_of_line_break(file: Path, number: int) -> None:
    logger.warning(
        "%s, line %d: a value in quotation marks has a line break; if these are several rows, a "
        "quotation mark is in the wrong place",
        file,
        number,
    )


def _rows(
    file: Path,
    names: Sequence[str],
    places: Sequence[int],
    fields: list[list[str]],
    numbers: list[int],
    missing: Collection[str],
) -> Rows:
    columns = {}
    for name, place in zip(names, places, strict=True):
        texts = (line[place].strip() for line in fields)
        columns[name] = np.array([clean(text, missing) for text in texts], object)
    return Rows(columns, file, numbers)


def clean(text: str, missing: Collection[str]) -> str:
    """Return a text, or "" if it stands for a missing value."""
    return "" if text in missing else text


def _lines(text: TextIO, file: Path, delimiter: str) -> Iterator[tuple[list[str], int]]:
    """Return the fields of each line, and the line's number; blank lines are left out."""
    csv.field_size_limit(sys.maxsize)  # of all readers; a text may have any length
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        for fields in reader:
            if fields:
                yield [field.strip() for field in fields], reader.line_num
    except csv.Error as error:
        raise ValueError(f"{file}, line {reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file}, after line {reader.line_num}: it is not UTF-8 ({error.reason})"
        ) from error


def _open_text(file: Path) -> TextIO:
    return open(file, encoding="utf-8-sig", newline="")


def _open_parquet(file: Path) -> Any:
    parquet = import_extra("pyarrow.parquet", "parquet", str(file))
    try:
        return parquet.ParquetFile(file)
    except Exception as error:  # whatever Arrow raises
        reason = first_line(error)
        raise ValueError(f"{file} cannot be read as Parquet: {reason}") from error


def _parquet_rows(file: Path, names: Sequence[str], missing: Collection[str]) -> Iterator[Rows]:
    done = 0
    try:
        for batch in _open_parquet(file).iter_batches(ROWS, columns=list(names)):
            columns = {
                name: _values(batch.column(name), f"{file}: column {name!r}", missing)
                for name in names
            }
            yield Rows(columns, file, range(done + 1, done + batch.num_rows + 1))
            done += batch.num_rows
    except OSError as error:  # as Arrow tells damage
        reason = first_line(error)
        raise ValueError(f"{file}, after row {done}: {reason}") from error


def _values(column: Any, name: str, missing: Collection[str]) -> np.ndarray:
    """Return a column of Parquet as texts, numbers or dates."""
    arrow = import_extra("pyarrow", "parquet", name)
    kinds = arrow.types
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if kinds.is_boolean(kind):
        texts = ("" if value is None else str(value).lower() for value in column.to_pylist())
        return np.array(list(texts), object)
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        numbers: np.ndarray = column.cast(arrow.float64(), safe=False).to_numpy(
            zero_copy_only=False
        )
        return numbers
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        dates: np.ndarray = column.cast(arrow.timestamp("us")).to_numpy(zero_copy_only=False)
        return dates.astype("datetime64[us]")
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        texts = ("" if value is None else value.strip() for value in column.to_pylist())
        return np.array([clean(text, missing) for text in texts], object)
    raise ValueError(f"{name} is of type {kind}; add it to dataset.columns as ignored")
