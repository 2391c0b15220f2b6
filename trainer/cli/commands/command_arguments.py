"""Arguments of the commands: flags, and paths of runs. No TensorFlow."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from trainer.cli.command_table import COMMANDS
from trainer.config import addresses
from trainer.config.options.constraints import did_you_mean
from trainer.errors import ConfigError
from trainer.runs import directory
from trainer.runs.run_summary import last_write

DEFAULT_FOLDER = Path("runs")
"""Where runs are unless a configuration says otherwise."""


class Parser(argparse.ArgumentParser):
    """Parses the arguments of a command; a wrong one is a `ConfigError`."""

    def __init__(self, name: str, epilog: str) -> None:
        super().__init__(
            prog=name, description=f"Shows {COMMANDS[name][1]}.", epilog=epilog, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error with the usage.

        Raises:
            ConfigError: always.
        """
        usage = " ".join(self.format_usage().split())
        prefix, _, rest = message.partition(": ")
        if prefix == "unrecognized arguments" and rest.startswith("-"):
            word = rest.split()[0]
            options = [name.strip("-") for name in self._option_string_actions]
            hint = did_you_mean(word.partition("=")[0].strip("-"), options).replace(" '", " '--")
            raise ConfigError(f"unknown option {word}{hint or f'; {usage}'}")
        raise ConfigError(f"{message}; {usage}")


def run_at(command: str, argument: str | None) -> Path:
    """Return the run directory that an argument of a command names; None: the newest in `runs`.

    Raises:
        ConfigError: there is no run.
    """
    if argument is None:
        return default_runs(command)[0]
    if addresses.is_remote(argument):
        raise ConfigError(
            f"{command} ({argument}) reads a folder of this machine; give the one in "
            "store.work_dir in which the run works, or bring it there with resume=<address>"
        )
    path = Path(argument).expanduser()
    if is_run(path):
        return path
    near = did_you_mean(path.name, [other.name for other in runs_in(path.parent)])
    hint = near.replace("'", f"'{path.parent}/", 1) or "; give the path of a run directory"
    problem = "no run there: it has no config.yaml" if path.exists() else "no such run directory"
    raise ConfigError(f"{command} ({argument}): {problem}{hint}")


def default_runs(command: str) -> list[Path]:
    """Return the runs in `runs`, for a command that names none, those last written first.

    Raises:
        ConfigError: there is none.
    """
    paths = runs_in(DEFAULT_FOLDER)
    if not paths:
        state = "has no run yet" if DEFAULT_FOLDER.is_dir() else "does not exist here"
        raise ConfigError(
            f"{command}: the folder {DEFAULT_FOLDER} {state}; train a run, or write {command} "
            "<run> with the path of a run directory"
        )
    return sorted(paths, key=lambda path: (-last_write(path), path))


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories right in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if is_run(path)) if folder.is_dir() else []


def is_run(path: Path) -> bool:
    """Return whether a directory is a run, which may be damaged."""
    return directory.has_run(path)
