"""What is done to a command line before Hydra reads it: pairs of keys, and `resume=<run directory>`. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainer.config import run_problem
from trainer.errors import ConfigError
from trainer.provenance import latest, read
from trainer.schema import GROUPS, ONE_CHOICE, PAIRS, USED

_NO_NAME = re.compile(r"null|true|false|-?[\d.]+", re.IGNORECASE)
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
_OTHER = {**dict(PAIRS), **{second: first for first, second in PAIRS}}


def rewrite(overrides: list[str], config_dir: str | None = None) -> tuple[list[str], str | None]:
    """Completes overrides as the user means them.

    Setting one key of a pair replaces the other's default: `train.steps=100` alone is enough. `checkpoint=best` says which one is
    used, and leaves the group's choice alone. A run that is resumed brings its own overrides, which come first so that new ones win.

    Raises:
        ConfigError: `resume` names no run, or one whose own directory of choices is gone.
    """
    overrides = [_used(item) for item in overrides]
    resume = next((_value(item) for item in reversed(overrides) if override_key(item) == "resume"), "auto")
    if resume not in ("auto", "never", "null", ""):
        saved = _saved(resume)
        overrides = [*_without(saved.get("overrides") or [], overrides), *overrides]
        config_dir = config_dir or _saved_dir(resume, saved)
    overrides = [item for item in overrides if _chooses(item)]
    keys = {override_key(item) for item in overrides}
    nulls = [f"{_OTHER[key]}=null" for item in overrides if _sets_one(item) and _OTHER[key := override_key(item)] not in keys]
    return [*overrides, *dict.fromkeys(nulls)], config_dir


def resume_override(path: Path) -> str:
    """Gives the override that continues the run in a directory; quoted, if it must be, for who reads overrides."""
    text = str(path)
    quoted = text if _PLAIN.fullmatch(text) else '"' + text.replace('"', '\\"') + '"'
    return f"resume={quoted}"


def override_key(override: str) -> str:
    """Gives the key or group that an override sets."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def _used(override: str) -> str:
    """Gives the key that `checkpoint=best`, `checkpoint=120` mean: when to save, which the group holds, is not their business."""
    is_meant = override_key(override) == "checkpoint" and (_value(override) in USED or _value(override).isdecimal())
    return f"checkpoint.use={_value(override)}" if is_meant else override


def _chooses(override: str) -> bool:
    """Whether an override may stay: `experiment=null`, no recipe, is what Hydra takes for granted and does not understand."""
    key, value = override_key(override), _value(override)
    if not key:
        raise ConfigError(f"'{override}' is not an override; write key=value or group=choice")
    if key.startswith("hydra."):
        _check_hydra(key)
    if key in ONE_CHOICE and value.startswith("["):
        raise ConfigError(f"{key} ({value}) must be one choice; write {key}=<choice>, or -m {key}=<choice>,<choice> to try each")
    if key not in GROUPS or override.startswith("~") or not _NO_NAME.fullmatch(value):
        return True
    if (key, value) != ("experiment", "null"):
        raise ConfigError(f"{key} ({value}) must be the name of a choice; see --help for the choices")
    return False


def _check_hydra(key: str) -> None:
    """Refuses those of Hydra's own keys that say where and how it runs: that is not Hydra's part here."""
    section = key.split(".")[1]
    other = {"mode": "add -m for a sweep", "searchpath": "write --config-dir=<directory>"}.get(section)
    if section in ("run", "sweep", "output_subdir", "job"):
        other = "write runs_dir=<directory> and name=<name>"
    if other:
        raise ConfigError(f"{key} does nothing here; {other}")


def _sets_one(override: str) -> bool:
    return override_key(override) in _OTHER and not override.startswith("~") and _value(override) != "null"


def _saved(resume: str) -> Mapping[str, Any]:
    """Reads what the run was last trained with."""
    if "," in resume and not Path(resume).exists():
        raise ConfigError(f"resume ({resume}) must be one run; resume runs one at a time")
    if line := run_problem(resume):
        raise ConfigError(line)
    return latest(read(Path(resume).expanduser()))


def _saved_dir(resume: str, saved: Mapping[str, Any]) -> str | None:
    directory = saved.get("config_dir")
    if directory and not Path(directory).is_dir():
        raise ConfigError(
            f"resume ({resume}) was trained with --config-dir={directory}, where no directory is now; add --config-dir=<directory>"
        )
    return directory


def _without(saved: Iterable[str], new: Iterable[str]) -> list[str]:
    """Leaves out saved overrides that new ones replace: the same key, the other of its pair, the options of a group.

    What was allowed to that command is not allowed to this one.
    """
    keys = {"resume_allow", *(override_key(item) for item in new)}
    keys |= {_OTHER[key] for key in keys if key in _OTHER}
    chosen = tuple(f"{key}." for key in keys if key in GROUPS)
    return [item for item in saved if override_key(item) not in keys and not override_key(item).startswith(chosen)]


def _value(override: str) -> str:
    value = override.partition("=")[2].strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
