"""metrics.jsonl: one object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from trainer.files import write_atomically, writing
from trainer.writers.base import Writer


class JsonLines(Writer):
    """metrics.jsonl: one object a line.

    Args:
        run_dir: the run directory.
        position: lines of later steps are removed: they will be written again, and none may stand there twice.
        name: the file's name; each file has one process that writes.
    """

    def __init__(self, run_dir: Path, position: int, name: str = "metrics.jsonl") -> None:
        self._path = run_dir / name
        if self._path.exists():
            write_atomically(self._path, "".join(f"{line}\n" for line in _lines(self._path, position)))
        with writing(self._path):
            self._file = self._path.open("a", buffering=1, encoding="utf-8")

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        with writing(self._path):
            self._file.write(json.dumps({"step": step, "split": split, **values}) + "\n")

    def flush(self) -> None:
        with writing(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with writing(self._path), self._file:
            self.flush()


def points(run_dir: Path, position: int) -> list[tuple[str, int, dict[str, float]]]:
    """Gives (split, step, values) of what metrics.jsonl has up to a position, in order."""
    path = run_dir / "metrics.jsonl"
    found = [json.loads(line) for line in _lines(path, position)] if path.exists() else []
    return [(point.pop("split"), point.pop("step"), point) for point in found]


def _lines(path: Path, position: int) -> list[str]:
    return [line for line in path.read_text().splitlines() if _step(line) <= position]


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        # The last line of a killed process may be cut off.
        return float("inf")
