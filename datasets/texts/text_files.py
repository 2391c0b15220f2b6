"""Labeled texts in files: CSV, JSON lines, Parquet, or a folder of `.txt` for each class.

A row has a name, `<file>:<number>` or the file's own, relative to the folder: which split it
belongs to follows from that alone, on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.datasets.splits.paths import Paths, find_files, visible_files
from trainer.datasets.tables.table_files import column_names, csv_lines, parquet_batches

EXTENSIONS = (".csv", ".jsonl", ".parquet", ".txt")
_LAYOUT = (
    "give a file .csv, .jsonl, .parquet or .txt, a folder of these or of <class>/<name>.txt, or a "
    "pattern with *"
)


@dataclass(frozen=True)
class Row:
    """A text with its label, or None, and the name of the row."""

    name: str
    text: str
    label: str | int | None


def find(path: Paths, key: str = "path") -> list[Path]:
    """Return the files of texts at or below a path, sorted; hidden ones are left out.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: there are no texts, or of several kinds.
    """
    root = Path(str(path)).expanduser()
    if root.is_dir():
        files = sorted(file for file in visible_files(root) if file.suffix in EXTENSIONS)
    else:
        files = find_files(path, key, suffixes=EXTENSIONS)
    kinds = sorted({file.suffix for file in files})
    if not files or not set(kinds) <= set(EXTENSIONS):
        raise ValueError(f"{key} ({root}) holds no texts; {_LAYOUT}")
    if len(kinds) > 1:
        raise ValueError(f"{key} ({root}) holds files {' and '.join(kinds)}; keep one kind")
    return files


def have_labels(root: Path, files: list[Path], text: str, label: str) -> bool:
    """Return whether files have labels: the first row decides, or a folder for a class."""
    if files[0].suffix == ".txt":
        return any(root not in (path, path.parent) for path in files)
    _, row = next(_records(files[0], text, label), (0, None))
    return not isinstance(row, dict) or label in row


def read(root: Path, files: list[Path], text: str, label: str | None) -> Iterator[Row]:
    """Yield the rows of files below `root`, in order.

    Labels are strings or integers; with `label` None they are not read.

    Raises:
        ValueError: a file is damaged, or a row lacks a value; names the file and the row.
    """
    for path in files:
        name = path.relative_to(root).as_posix() if root in path.parents else path.name
        if path.suffix != ".txt":
            for number, row in _records(path, *filter(None, (text, label))):
                yield _row(f"{name}:{number}", f"{path}, row {number}", row, text, label)
        elif path.parent == root and label is not None:
            raise ValueError(
                f"{path} is in no folder of a class; {_LAYOUT}, so that it has a label"
            )
        else:
            yield Row(name, _decoded(path), None if label is None else path.parent.name)


def _records(path: Path, *columns: str) -> Iterator[tuple[int, Any]]:
    """Return the number of each row in a file, and its values by key."""
    if path.suffix == ".csv":
        return _csv(path)
    return _json_lines(path) if path.suffix == ".jsonl" else _parquet(path, *columns)


def _row(name: str, place: str, values: Any, text: str, label: str | None) -> Row:
    """Return a row of its values by key, which must have a text and, unless it is None, a label."""
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise ValueError(f"{place}: {kind} is no object with keys; fix or remove it")
    for option, key in (("text", text), ("label", label)):
        if key is not None and key not in values:
            raise ValueError(
                f"{place} has no '{key}', it has {', '.join(values)}; set dataset.{option}=<key>"
            )
    content, value = values[text], label and values[label]
    if not isinstance(content, str):
        raise ValueError(f"{place}: '{text}' is no text but {content!r}; fix or remove it")
    if label is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise ValueError(
            f"{place}: '{label}' is {value!r}, a label must be a text or an integer; "
            "fix or remove it"
        )
    return Row(name, content, value)


def _decoded(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason}; save it as UTF-8") from None


def _csv(path: Path) -> Iterator[tuple[int, Any]]:
    lines = csv_lines(path, has_texts=True)
    _, names = next(lines)
    for number, (_, fields) in enumerate(lines, start=1):
        yield number, dict(zip(names, fields, strict=False))


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"{path}, row {number} is not JSON ({error}); fix or remove the line"
                ) from None


def _parquet(path: Path, *keys: str) -> Iterator[tuple[int, Any]]:
    # With a column missing, all names are wanted for the message.
    columns = keys if set(keys) <= set(column_names(path)) else None
    rows = (row for batch in parquet_batches(path, columns) for row in batch.to_pylist())
    yield from enumerate(rows, start=1)
