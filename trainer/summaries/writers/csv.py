"""CSV: metrics-train.csv and metrics-test.csv in the run directory, for a spreadsheet.

There is one table for each split, so that no column is half empty.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from trainer.files import read_bytes, regular_file, write_atomically, writing
from trainer.summaries.writers.writer import Writer


class Csv(Writer):
    """Writes a table for each split, from its first metrics on.

    Args:
        run_dir: the run directory.
        position: rows of later steps are removed, because those steps are reported again.
    """

    network = None

    def __init__(self, run_dir: Path, position: int) -> None:
        self._run_dir = run_dir
        self._position = position
        self._tables: dict[str, _Table] = {}

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        if split not in self._tables:
            # Not earlier: another process may write the other table.
            self._tables[split] = _Table(self._run_dir / f"metrics-{split}.csv", self._position)
        self._tables[split].add({"step": step, **values})

    def flush(self) -> None:
        for table in self._tables.values():
            table.flush()

    def close(self) -> None:
        for table in self._tables.values():
            table.close()


class _Table:
    """A file with the columns of all rows; a new column is empty in the earlier rows."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._columns: list[str] = []
        self._file: TextIO | None = None
        self._write([row for row in self._rows() if int(row["step"]) <= position])

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row; a new column needs a new file."""
        if new := [name for name in row if name not in self._columns]:
            self._columns += new
            self._write(self._rows())
        with writing(self._path):
            assert self._file is not None
            self._file.write(self._text([row]))
            self._file.flush()

    def flush(self) -> None:
        """Flush all rows to the disk."""
        with writing(self._path):
            assert self._file is not None
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush all rows to the disk and close the file."""
        self.flush()
        with writing(self._path):
            assert self._file is not None
            self._file.close()

    def _rows(self) -> list[dict[str, str]]:
        if not self._path.exists():
            return []
        # A kill may have cut off the last line, and other damage may have hit any.
        text = read_bytes(self._path).decode(errors="replace").replace("\0", "")
        lines = text.splitlines(keepends=True)
        reader = csv.DictReader([line for line in lines if line.endswith("\n")])
        if "step" not in (reader.fieldnames or ()):
            return []
        self._columns = self._columns or list(reader.fieldnames or ())
        return [row for row in reader if (row["step"] or "").isdecimal() and None not in row]

    def _write(self, rows: list[dict[str, str]]) -> None:
        head = (
            self._text([dict(zip(self._columns, self._columns, strict=True))])
            if self._columns
            else ""
        )
        write_atomically(self._path, head + self._text(rows))
        with writing(self._path):
            if self._file is not None:
                self._file.close()
            self._file = open(  # noqa: SIM115
                self._path, "a", encoding="utf-8", newline="", opener=regular_file
            )

    def _text(self, rows: list[dict[str, str]] | list[Mapping[str, float]]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue()
