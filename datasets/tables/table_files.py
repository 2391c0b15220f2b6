"""Rows of CSV and Parquet files: read a block at a time, with their places, in two splits.

Python's own reader, and not Arrow's, reads CSV: a row belongs to a split by the number of its line.
"""

from __future__ import annotations

import csv
import functools
import gzip
import logging
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trainer.datasets.splits.paths import Splits, hash_rows, hash_texts
from trainer.optional_packages import import_extra
from trainer.text import first_line

logger = logging.getLogger(__name__)

ROWS = 1 << 16
SUFFIXES = (".csv", ".csv.gz", ".parquet")
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
"""Texts of a file that mean a missing value."""

_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")


@dataclass(frozen=True)
class Rows:
    """Some rows of a file, by column.

    Attributes:
        columns: name -> [N], of texts (dtype object, "" is missing), float64 (NaN is missing) or
            datetime64 (NaT is missing).
        numbers: [N], the line of each row in a CSV file, or its number in a Parquet file, from 1.
    """

    columns: dict[str, np.ndarray]
    file: Path
    numbers: Sequence[int]

    def place(self, row: int) -> str:
        """Return where row `row` is, for messages."""
        unit = "row" if self.file.suffix == ".parquet" else "line"
        return f"{self.file}, {unit} {self.numbers[row]}"


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """The files of a table, and how they are read.

    Attributes:
        splits: the files of each; of `train` alone a part of the rows is tested on.
        decimal_comma: whether a comma is before the fraction of a number of CSV.
        split_by: the column whose hash decides; None: that of the file's name and the row's number.
    """

    splits: Splits
    delimiter: str
    decimal_comma: bool
    test_fraction: float
    split_by: str | None

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1:
            raise ValueError(f"delimiter ({self.delimiter!r}) must be one character, or tab")

    @cached_property
    def names(self) -> list[str]:
        """The columns of the first file."""
        return column_names(self.splits.train.files[0], self.delimiter)

    def read(self, split: str, names: Sequence[str]) -> Iterator[Rows]:
        """Read columns of a split from the start.

        Raises:
            ValueError: a file is damaged, or lacks a column; the message names file and line.
        """
        is_whole = self.splits.is_whole
        files = self.splits.train.files if is_whole else self.splits.present[split].files
        needed = [*names, self.split_by] if is_whole and self.split_by else names
        is_empty = True
        for rows in self._rows(files, list(dict.fromkeys(needed))):
            chosen = np.ones(len(rows.numbers), bool)
            if is_whole:
                chosen = (self.hashes(rows) < self.test_fraction) == (split == "test")
            if chosen.any():
                columns = {name: rows.columns[name][chosen] for name in names}
                yield Rows(columns, rows.file, np.asarray(rows.numbers)[chosen].tolist())
                is_empty = False
        if is_empty:
            fraction = f"; change test_fraction ({self.test_fraction})" if is_whole else ""
            raise ValueError(f"{files[0]} has no rows in the {split} split{fraction}")

    def hashes(self, rows: Rows) -> np.ndarray:
        """Return a number in [0, 1) for each of some rows, [N], that other rows do not change."""
        if self.split_by is None:
            return hash_rows(rows.file.name, np.asarray(rows.numbers))
        return hash_texts(as_texts(rows.columns[self.split_by]))

    def _rows(self, files: Sequence[Path], names: Sequence[str]) -> Iterator[Rows]:
        for file in files:
            available = column_names(file, self.delimiter)
            if lacking := [name for name in names if name not in available]:
                listed = ", ".join(available)
                raise ValueError(f"{file} has no column {lacking[0]!r}, it has {listed}")
            yield from (_parquet_rows if file.suffix == ".parquet" else self._csv_rows)(file, names)

    def _csv_rows(self, file: Path, names: Sequence[str]) -> Iterator[Rows]:
        lines = csv_lines(file, self.delimiter)
        _, header = next(lines)
        places = {name: header.index(name) for name in names}
        while block := list(islice(lines, ROWS)):
            columns = {
                name: np.array([clean(line[at], self.decimal_comma) for _, line in block], object)
                for name, at in places.items()
            }
            yield Rows(columns, file, [number for number, _ in block])


def clean(field: str, decimal_comma: bool = False) -> str:
    """Return the value of a field as a text without spaces around it, "" if it is missing."""
    text = field.strip()
    if decimal_comma and _DECIMAL_COMMA.fullmatch(text):
        return text.replace(",", ".")
    return "" if text in MISSING else text


def is_missing(values: np.ndarray) -> np.ndarray:
    """Return whether each value of a column is missing, [N] bool."""
    if values.dtype == object:
        return values == ""
    return np.isnat(values) if values.dtype.kind == "M" else np.isnan(values)


def as_texts(values: np.ndarray) -> list[str]:
    """Return values as texts: whole numbers without a point, "" for a missing one."""
    if values.dtype == object:
        return list(values)
    texts = values.astype(str) if values.dtype.kind == "M" else (f"{v:.17g}" for v in values)
    return ["" if lacks else text for text, lacks in zip(texts, is_missing(values), strict=True)]


def column_names(file: Path, delimiter: str = ",") -> list[str]:
    """Return the names of columns; raise a ValueError if unreadable or one occurs twice."""
    if file.suffix == ".parquet":
        return _checked(list(_open_parquet(file).schema_arrow.names), file)
    return next(csv_lines(file, delimiter))[1]


def _checked(names: list[str], file: Path) -> list[str]:
    if not names:
        raise ValueError(f"{file} is empty; its first line must name the columns")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{file} has several columns {twice[0]!r}; rename them")
    return names


def csv_lines(
    file: Path, delimiter: str = ",", *, has_texts: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line with a value; first the names of the columns.

    Args:
        file: a CSV file, also compressed.
        has_texts: whether values are texts, which may have spaces at the start and line breaks;
            otherwise a warning reports line breaks, for a quotation mark in the wrong place makes
            one row of several.

    Raises:
        ValueError: the file is damaged; the message names the line.
    """
    csv.field_size_limit(sys.maxsize)  # of all readers; a text may have any length
    reader = csv.reader(())
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8-sig", newline="") as text:
            spaced = not has_texts or f"{delimiter} " in text.readline()
            text.seek(0)
            reader = csv.reader(text, delimiter=delimiter, skipinitialspace=spaced, strict=True)
            lines = (fields for fields in reader if any(field.strip() for field in fields))
            names = [name.strip() for name in next(lines, [])]
            while names and not names[-1]:  # some programs end every line with delimiters
                names.pop()
            yield reader.line_num, _checked(names, file)
            for fields in lines:
                if len(fields) < len(names) or any(fields[len(names) :]):
                    raise ValueError(
                        f"{file}, line {reader.line_num}: {len(fields)} fields, the header has "
                        f"{len(names)}; repair or remove the line"
                    )
                if not has_texts and any("\n" in field for field in fields):
                    _warn_of_line_break(file, reader.line_num)
                yield reader.line_num, fields
    except (csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file}, line {reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file}, after line {reader.line_num}: it is not UTF-8 ({error.reason})"
        ) from error


@functools.cache  # a file is read several times
def _warn_of_line_break(file: Path, number: int) -> None:
    logger.warning(
        "%s, line %d: a value in quotation marks has a line break; if these are several rows, a "
        "quotation mark is in the wrong place",
        file,
        number,
    )


def parquet_batches(file: Path, names: Sequence[str] | None) -> Iterator[Any]:
    """Yield batches of rows of a Parquet file, of some columns or all, or raise a ValueError."""
    arrow = import_extra("pyarrow", "parquet", str(file))
    done = 0
    try:
        for batch in _open_parquet(file).iter_batches(ROWS, columns=names and list(names)):
            yield batch
            done += batch.num_rows
    except (OSError, arrow.ArrowException) as error:
        raise ValueError(f"{file}, after row {done}: {first_line(error)}") from error


def _open_parquet(file: Path) -> Any:
    parquet = import_extra("pyarrow.parquet", "parquet", str(file))
    try:
        return parquet.ParquetFile(file)
    except Exception as error:  # any exception of Arrow
        raise ValueError(f"{file} cannot be read as Parquet: {first_line(error)}") from error


def _parquet_rows(file: Path, names: Sequence[str]) -> Iterator[Rows]:
    start = 1
    for batch in parquet_batches(file, names):
        stop = start + batch.num_rows
        columns = {name: _values(batch.column(name), f"{file}: column {name!r}") for name in names}
        yield Rows(columns, file, range(start, stop))
        start = stop


def _values(column: Any, name: str) -> np.ndarray:
    """Return a column of Parquet as texts, numbers or dates."""
    import pyarrow as arrow

    kinds = arrow.types
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        numbers = column.cast(arrow.float64(), safe=False)
        return np.asarray(numbers.to_numpy(zero_copy_only=False))
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        dates = column.cast(arrow.timestamp("us")).to_numpy(zero_copy_only=False)
        return np.asarray(dates, "datetime64[us]")
    if kinds.is_boolean(kind):
        column = column.cast(arrow.string())
    elif not kinds.is_string(kind) and not kinds.is_large_string(kind):
        raise ValueError(f"{name} is of type {kind}; add it to dataset.columns as ignored")
    return np.array([clean(value or "") for value in column.to_pylist()], object)
