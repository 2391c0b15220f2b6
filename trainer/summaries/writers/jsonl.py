"""JSON Lines: metrics.jsonl in the run directory."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from trainer.files import regular_file, write_atomically, writing
from trainer.runs.recorded_metrics import read_lines
from trainer.summaries.writers.writer import Writer

_log = logging.getLogger(__name__)


class JsonLines(Writer):
    """Writes one JSON object a line: step, split and metrics.

    Args:
        position: lines of later steps are removed, because those steps are reported again; so are
            damaged lines.
    """

    FILE: ClassVar[str] = "metrics.jsonl"

    network = None
    sidecar = None  # it records its evaluations itself, also without this writer

    def __init__(self, run_dir: Path, position: int) -> None:
        self._path = run_dir / self.FILE
        lines, num_damaged = read_lines(self._path)
        if num_damaged:
            _log.warning(
                "%s: %d damaged lines of %d are left out",
                self._path,
                num_damaged,
                num_damaged + len(lines),
            )
        kept = (json.dumps(line) for line in lines if line["step"] <= position)
        # Also of a new file: a power cut must not take the name of what is flushed later.
        write_atomically(self._path, "".join(f"{line}\n" for line in kept))
        with writing(self._path):
            self._file = open(  # noqa: SIM115
                self._path, "a", buffering=1, encoding="utf-8", opener=regular_file
            )

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
    lines, _ = read_lines(run_dir / JsonLines.FILE)
    return [
        (line.pop("split"), line.pop("step"), line) for line in lines if line["step"] <= position
    ]
