"""config.yaml of a run: its whole configuration, and the only one of its files with secrets."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import yaml

from trainer.config import loading, yaml_text
from trainer.config.schema import Experiment
from trainer.errors import ConfigError, DamagedError
from trainer.files import read_text, write_atomically

REPEAT = "repeat the command that began the run, which writes it anew"
_SEAL = "# crc32 of what follows: "
"""The first line, so that a file that was cut shows it."""


def read_experiment(path: Path) -> Experiment:
    """Return the experiment of a run directory, as the command that began it had it.

    Raises:
        DamagedError: config.yaml is missing, or cannot be read.
    """
    file = path / "config.yaml"
    try:
        config = read_config(path)
    except FileNotFoundError as error:
        raise DamagedError(file, "it is missing", REPEAT) from error
    try:
        return loading.restore(config)
    except ConfigError as error:
        raise DamagedError(file, error.problems[0]) from error


def read_config(path: Path) -> dict[str, Any]:
    """Return config.yaml of a run directory.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: it cannot be read.
    """
    file = path / "config.yaml"
    seal, _, text = (content := read_text(file)).partition("\n")
    is_sealed = seal.startswith(_SEAL)
    if is_sealed and seal != f"{_SEAL}{zlib.crc32(text.encode()):08x}":
        raise DamagedError(file, "its content has changed since it was written")
    try:
        config = yaml_text.load_own(text) if is_sealed else yaml_text.load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise DamagedError(file, f"it is not YAML: {problem}") from error
    if not isinstance(config, dict):
        raise DamagedError(file, "it holds no configuration")
    return config


def write_config(path: Path, experiment: Experiment) -> None:
    """Write config.yaml, for its owner alone."""
    text = yaml.safe_dump(loading.plain(experiment), sort_keys=False)
    content = f"{_SEAL}{zlib.crc32(text.encode()):08x}\n{text}"
    write_atomically(path / "config.yaml", content, mode=0o600)
