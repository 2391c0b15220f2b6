"""metrics-train.csv and metrics-test.csv, for a spreadsheet: a table for each split, so that no column is half empty."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from trainer.files import write_atomically, writing
from trainer.writers.base import Writer


class Csv(Writer):
    """A table for each split, from its first metrics on.

    Args:
        run_dir: the run directory.
        position: rows of later steps are removed: they will be written again.
    """

    def __init__(self, run_dir: Path, position: int) -> None:
        self._run_dir, self._position = run_dir, position
        self._tables: dict[str, _Table] = {}

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        if split not in self._tables:
            # Not before: the other table may be another process's.
            self._tables[split] = _Table(self._run_dir / f"metrics-{split}.csv", self._position)
        self._tables[split].add({"step": step, **values})

    def flush(self) -> None:
        for table in self._tables.values():
            table.flush()

    def close(self) -> None:
        for table in self._tables.values():
            table.close()


class _Table:
    """A file whose columns are those of all rows so far: one that comes later is empty in the rows before."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._columns: list[str] = []
        self._file: TextIO | None = None
        self._write([row for row in self._rows() if int(row["step"]) <= position])

    def add(self, row: Mapping[str, float]) -> None:
        """Appends a row; a new column takes a new file."""
        if new := [name for name in row if name not in self._columns]:
            self._columns += new
            self._write(self._rows())
        with writing(self._path):
            assert self._file is not None
            self._file.write(self._text([row]))
            self._file.flush()

    def flush(self) -> None:
        """Brings all rows to the disk."""
        with writing(self._path):
            assert self._file is not None
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Brings all rows to the disk, and closes the file."""
        self.flush()
        with writing(self._path):
            assert self._file is not None
            self._file.close()

    def _rows(self) -> list[dict[str, str]]:
        if not self._path.exists():
            return []
        # The last line of a killed process may be cut off.
        whole = [line for line in self._path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        reader = csv.DictReader(whole)
        self._columns = self._columns or list(reader.fieldnames or ())
        return list(reader)

    def _write(self, rows: list[dict[str, str]]) -> None:
        head = self._text([dict(zip(self._columns, self._columns, strict=True))]) if self._columns else ""
        write_atomically(self._path, head + self._text(rows))
        with writing(self._path):
            if self._file is not None:
                self._file.close()
            self._file = self._path.open("a", encoding="utf-8", newline="")

    def _text(self, rows: list[dict[str, str]] | list[Mapping[str, float]]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue()
