"""The lines of metrics.jsonl and evaluations.jsonl, those that are damaged left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.files import read_bytes


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a file in order, and the number of those that are damaged.

    A last line that a kill has cut off is not counted; a missing file has no lines.

    Raises:
        DamagedError: something else is in the place of the file, or it cannot be read.
    """
    try:
        *texts, last = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return [], 0
    lines = [_line(text) for text in texts if text]
    if end := _line(last):
        lines.append(end)
    return [line for line in lines if line], lines.count(None)


def _line(text: bytes) -> dict[str, Any] | None:
    """Return a line that has a step, a split and numbers; None: it is damaged."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        return None
    others = [value for name, value in line.items() if name != "split"]
    is_whole = isinstance(line.get("split"), str) and all(
        value is None or isinstance(value, int | float) for value in others
    )
    return line if is_whole else None
