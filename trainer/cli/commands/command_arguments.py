"""The runs that the arguments of commands name. No TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from trainer.config import addresses
from trainer.errors import ConfigError
from trainer.runs.directory import SWEEP_SUMMARY, has_run
from trainer.runs.run_summary import last_write
from trainer.text import did_you_mean

DEFAULT_FOLDER = Path("runs")


def run_at(command: str, argument: str | None) -> Path:
    """Return the run that an argument names, or the newest in `runs`; else raise a ConfigError."""
    if argument is None:
        return default_runs(command)[0]
    if addresses.is_remote(argument):
        raise ConfigError(
            f"{command} ({argument}) reads a folder of this machine; give the one in "
            "store.work_dir in which the run works, or bring it there with resume=<address>"
        )
    path = Path(argument).expanduser()
    if has_run(path):
        return path
    near = did_you_mean(path.name, [other.name for other in runs_in(path.parent)])
    hint = near.replace("'", f"'{path.parent}/", 1) or "; give the path of a run directory"
    problem = "no run there: it has no config.yaml" if path.exists() else "no such run directory"
    raise ConfigError(f"{command} ({argument}): {problem}{hint}")


def default_runs(command: str) -> list[Path]:
    """Return the runs in `runs`, those last written first; raise a ConfigError if there is none."""
    paths = runs_in(DEFAULT_FOLDER)
    if not paths:
        state = "has no run yet" if DEFAULT_FOLDER.is_dir() else "does not exist here"
        raise ConfigError(
            f"{command}: the folder {DEFAULT_FOLDER} {state}; train a run, or write {command} "
            "<run> with the path of a run directory"
        )
    return sorted(paths, key=lambda path: (-last_write(path), path))


def listed_runs(command: str, argument: str) -> list[Path]:
    """Return what `runs_at` returns; raise a ConfigError if there is no run."""
    return runs_at(command, Path(argument).expanduser()) or [run_at(command, argument)]


def runs_at(command: str, path: Path) -> list[Path]:
    """Return the runs of a path: itself, those of a sweep, the best first, or the newest first."""
    if has_run(path):
        return [path]
    if (path / SWEEP_SUMMARY).is_file():
        return list(_of_sweep(command, path))
    return sorted(runs_in(path), key=_begun, reverse=True)


def _begun(path: Path) -> float:
    """Return when a run was begun, Unix time: unlike its last write it moves no run in a list."""
    try:
        return (path / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0


def _of_sweep(command: str, folder: Path) -> Iterator[Path]:
    """Yield the runs of a sweep that exist, even if their folder was moved."""
    try:
        points = json.loads((folder / SWEEP_SUMMARY).read_text(encoding="utf-8"))["points"]
        for point in points:
            recorded = Path(point["run"])
            paths = (recorded, folder.resolve().parent.parent / recorded.name)
            if path := next((path for path in paths if has_run(path)), None):
                yield path
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{command} ({folder}): its {SWEEP_SUMMARY} cannot be read: {error}"
        raise ConfigError(problem) from error


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories right in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if has_run(path)) if folder.is_dir() else []
