"""Reading of CSV and Parquet files, a part at a time, with the place of every row."""

from __future__ import annotations

import csv
import functools
import gzip
import logging
import re
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from trainer.datasets.splits.extras import import_extra
from trainer.text import first_line

logger = logging.getLogger(__name__)

ROWS = 1 << 16
SUFFIXES = (".csv", ".csv.gz", ".parquet")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")


@dataclass(frozen=True)
class CsvFormat:
    """How the fields of a CSV file are read; of Parquet `missing` alone counts.

    Attributes:
        delimiter: between the fields of a line.
        missing: texts that stand for a missing value.
        decimal_comma: whether a comma is before the fraction of a number.
        has_texts: whether values are texts that may have line breaks, and are kept as they are;
            otherwise spaces around a value are removed, and a warning reports line breaks, for a
            quotation mark in the wrong place makes one row of several.
    """

    delimiter: str = ","
    missing: Collection[str] = ()
    decimal_comma: bool = False
    has_texts: bool = False

    def value(self, field: str) -> str:
        """Return the value of a field, "" if it is missing."""
        text = field if self.has_texts else field.strip()
        if self.decimal_comma and _DECIMAL_COMMA.fullmatch(text):
            text = text.replace(",", ".")
        return clean(text, self.missing)


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


def column_names(file: Path, csv_format: CsvFormat) -> list[str]:
    """Return the names of the columns of a file.

    Raises:
        ValueError: it cannot be read, or a name stands twice.
    """
    if file.suffix == ".parquet":
        names = list(_open_parquet(file).schema_arrow.names)
    else:
        with _open_text(file) as text:
            names = _header(_lines(text, file, csv_format))
    if not names:
        raise ValueError(f"{file} is empty; its first line must name the columns")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{file} has several columns {twice[0]!r}; rename them")
    return names


def read_rows(
    files: Sequence[Path],
    names: Sequence[str],
    csv_format: CsvFormat,
) -> Iterator[Rows]:
    """Read some columns of files.

    Args:
        files: CSV or Parquet files.
        names: the columns that are read.
        csv_format: how their fields are read.

    Raises:
        ValueError: a file is damaged, or lacks a column; the message names file and line.
    """
    for file in files:
        available = column_names(file, csv_format)
        if lacking := [name for name in names if name not in available]:
            raise ValueError(f"{file} has no column {lacking[0]!r}, it has {', '.join(available)}")
        if file.suffix == ".parquet":
            yield from _parquet_rows(file, names, csv_format.missing)
        else:
            yield from _csv_rows(file, names, csv_format)


def _csv_rows(file: Path, names: Sequence[str], csv_format: CsvFormat) -> Iterator[Rows]:
    with _open_text(file) as text:
        lines = _lines(text, file, csv_format)
        header = _header(lines)
        places = [header.index(name) for name in names]
        fields: list[list[str]] = []
        numbers: list[int] = []
        for line, number in lines:
            # Some programs end every line with delimiters.
            if len(line) < len(header) or any(line[len(header) :]):
                raise ValueError(
                    f"{file}, line {number}: {len(line)} fields, the header has {len(header)}; "
                    "repair or remove the line"
                )
            if not csv_format.has_texts and any("\n" in field for field in line):
                _warn_of_line_break(file, number)
            fields.append(line)
            numbers.append(number)
            if len(fields) == ROWS:
                yield _rows(file, names, places, fields, numbers, csv_format)
                fields, numbers = [], []
        if fields:
            yield _rows(file, names, places, fields, numbers, csv_format)


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
    csv_format: CsvFormat,
) -> Rows:
    columns = {}
    for name, place in zip(names, places, strict=True):
        columns[name] = np.array([csv_format.value(line[place]) for line in fields], object)
    return Rows(columns, file, numbers)


def clean(text: str, missing: Collection[str]) -> str:
    """Return a text, or "" if it stands for a missing value."""
    return "" if text in missing else text


def _header(lines: Iterator[tuple[list[str], int]]) -> list[str]:
    """Return the names of the columns; those that only end the line with delimiters have none."""
    names = [name.strip() for name in next(lines, ([], 0))[0]]
    while names and not names[-1]:
        names.pop()
    return names


def _lines(text: IO[str], file: Path, csv_format: CsvFormat) -> Iterator[tuple[list[str], int]]:
    """Return the fields of each line, and the line's number; lines without a value are left out."""
    csv.field_size_limit(sys.maxsize)  # of all readers; a text may have any length
    delimiter = csv_format.delimiter
    reader = csv.reader(())
    try:
        spaced = not csv_format.has_texts or f"{delimiter} " in text.readline()
        text.seek(0)
        reader = csv.reader(text, delimiter=delimiter, skipinitialspace=spaced, strict=True)
        for fields in reader:
            if any(field and not field.isspace() for field in fields):
                yield fields, reader.line_num
    except (csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file}, line {reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file}, after line {reader.line_num}: it is not UTF-8 ({error.reason})"
        ) from error


def _open_text(file: Path) -> IO[str]:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
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
