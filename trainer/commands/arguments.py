"""What commands are told: flags, and paths of runs. No TensorFlow."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from trainer.commands import COMMANDS
from trainer.errors import ConfigError
from trainer.rules import did_you_mean


class Parser(argparse.ArgumentParser):
    """Parses the arguments of a command; a wrong one is a `ConfigError`."""

    def __init__(self, name: str, epilog: str) -> None:
        super().__init__(prog=name, description=f"Shows {COMMANDS[name][1]}.", epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Tells what is wrong and how it is written."""
        raise ConfigError(f"{message}; {self.format_usage().strip()}")


def run_at(command: str, given: str) -> Path:
    """Gives the run directory that a command is told.

    Raises:
        ConfigError: there is no run.
    """
    path = Path(given).expanduser()
    if is_run(path):
        return path
    near = did_you_mean(path.name, [other.name for other in runs_in(path.parent)])
    hint = near.replace("'", f"'{path.parent}/", 1) or "; give the path of a run directory"
    raise ConfigError(f"{command} ({given}): no run there: it has no config.yaml{hint}")


def runs_in(folder: Path) -> list[Path]:
    """Gives the run directories in a folder, by name; those of folders in it, such as sweeps, are not among them."""
    return sorted(path for path in folder.iterdir() if is_run(path)) if folder.is_dir() else []


def is_run(path: Path) -> bool:
    """Whether a directory is a run."""
    return (path / "config.yaml").is_file()
