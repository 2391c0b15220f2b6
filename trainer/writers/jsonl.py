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
            keep = [line for line in self._path.read_text().splitlines() if _step(line) <= position]
            write_atomically(self._path, "".join(f"{line}\n" for line in keep))
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


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        # The last line of a killed process may be cut off.
        return float("inf")
