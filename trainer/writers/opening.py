"""From the names in `summary.writers` to writers."""

from __future__ import annotations

from pathlib import Path

from trainer.writers.base import Writer
from trainer.writers.jsonl import JsonLines
from trainer.writers.tensorboard import TensorBoard


def open_writers(names: list[str], run_dir: Path, position: int) -> list[Writer]:
    """Opens the configured writers at a position, the number of updates already reported."""
    known: dict[str, type] = {"jsonl": JsonLines, "tensorboard": TensorBoard}
    return [known[name](run_dir, position) for name in names]
