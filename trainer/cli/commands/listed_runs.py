"""The runs that an argument of `report` or `ui` stands for: one, a folder's, a sweep's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from trainer.cli.commands.command_arguments import is_run, run_at, runs_in
from trainer.errors import ConfigError

_SUMMARY = "summary.json"


def listed_runs(command: str, argument: str) -> list[Path]:
    """Return the directories of the runs: those of a sweep the best first, others the newest.

    Raises:
        ConfigError: there is none.
    """
    path = Path(argument).expanduser()
    if not is_run(path):
        if (path / _SUMMARY).is_file():
            runs = list(_of_sweep(command, path))
            if not runs:
                raise ConfigError(f"{command} ({argument}): none of the sweep's runs is there")
            return runs
        if runs := runs_in(path):
            return sorted(runs, key=_begun, reverse=True)
    return [run_at(command, argument)]


def _begun(path: Path) -> float:
    """Return when a run was begun, Unix time: unlike its last write it moves no run in a list."""
    try:
        return (path / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0


def _of_sweep(command: str, folder: Path) -> Iterator[Path]:
    """Yield the runs of a sweep that exist, even if their folder was moved."""
    try:
        points = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))["points"]
        for point in points:
            recorded = Path(point["run"])
            paths = (recorded, folder.resolve().parent.parent / recorded.name)
            if path := next((path for path in paths if is_run(path)), None):
                yield path
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{command} ({folder}): its {_SUMMARY} cannot be read: {error}"
        raise ConfigError(problem) from error
