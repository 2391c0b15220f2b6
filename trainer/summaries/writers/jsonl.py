"""JSON Lines: metrics.jsonl in the run directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from trainer.files import write_atomically, writing
from trainer.summaries.writers.base import Writer


class JsonLines(Writer):
    """Writes one JSON object a line: step, split and metrics.

    Attributes:
        FILE: its name; each file has one process that writes.

    Args:
        run_dir: the run directory.
        position: lines of later steps are removed, because those steps are reported again.
    """

    FILE: ClassVar[str] = "metrics.jsonl"

    network = None

    def __init__(self, run_dir: Path, position: int) -> None:
        self._path = run_dir / self.FILE
        if self._path.exists():
            write_atomically(
                self._path, "".join(f"{line}\n" for line in _lines(self._path, position))
            )
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
    """Return (split, step, values) of each line of metrics.jsonl up to a position, in order."""
    path = run_dir / JsonLines.FILE
    lines = [json.loads(line) for line in _lines(path, position)] if path.exists() else []
    return [(line.pop("split"), line.pop("step"), line) for line in lines]


def _lines(path: Path, position: int) -> list[str]:
    return [line for line in path.read_text().splitlines() if _step(line) <= position]


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        # A kill may have cut off the last line.
        return float("inf")
