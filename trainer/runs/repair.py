"""Damaged files of a run: set aside before it goes on, so that they are as if missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import DamagedError
from trainer.files import read_json, regular_file

_FOLDERS = (
    "checkpoints", "events", "events/evaluator", "logs", "predictions", "faults",
)  # fmt: skip
_RECORDS = ("run.json", "result.json", "failure.json", "placement.json", "left_out.json")
_FILES = (
    "metrics.jsonl", "evaluations.jsonl", "ledger.jsonl", "confusion.json",
    "samples.png", "samples.txt", "masks.png", "mlflow_run_id", "wandb_run_id",
)  # fmt: skip
"""Whatever they hold is read with care, or not at all; but they must be files."""


def set_aside_damaged(run_dir: Path) -> list[str]:
    """Rename what is damaged in a run directory, which must be locked; return a line for each.

    Checkpoints stay where they are: a run goes on from the newest that is whole. And nothing stands
    in for `dataset.json` or, in a command that names the run by its path, for `config.yaml`.
    """
    return [
        f"{path}: {problem}; it is {set_aside(path).name} now, and the run goes on without it"
        for path, problem in _damaged(run_dir)
    ]


def set_aside(path: Path) -> Path:
    """Rename a file or a folder; return its new path."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in range(1, 1_000_000))
    return path.rename(next(name for name in names if not os.path.lexists(name)))


def _damaged(run_dir: Path) -> Iterator[tuple[Path, str]]:
    for path in (run_dir / name for name in _FOLDERS):
        if os.path.lexists(path) and not path.is_dir():
            yield path, "it is no directory"
    for path in (run_dir / name for name in _RECORDS):
        try:
            read_json(path)
        except FileNotFoundError:
            pass
        except DamagedError as error:
            yield path, error.reason
    logs = run_dir / "logs"
    for path in [*(run_dir / name for name in _FILES), *(logs.iterdir() if logs.is_dir() else ())]:
        try:
            with open(path, "rb", opener=regular_file):
                pass
        except FileNotFoundError:
            pass
        except OSError as error:
            yield path, error.strerror or str(error)
