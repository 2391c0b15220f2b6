"""Completes overrides before Hydra reads them: pairs of keys, and `resume=<run>`. No TensorFlow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainer.cli.error_messages import reading_configuration
from trainer.config import addresses
from trainer.config.removed import removal
from trainer.config.rules import run_problem
from trainer.config.schema import GROUPS, ONE_CHOICE, PAIRS, USED
from trainer.errors import ConfigError
from trainer.runs.provenance import latest_command, read
from trainer.runs.secret_masking import MASK

OURS = ("config.yaml", "schema")
"""What is ours alone in a directory of choices."""
_NO_NAME = re.compile(r"null|true|false|-?[\d.]+", re.IGNORECASE)
_COLUMN = re.compile(r"\+*dataset\.columns\.(.*[^\w-].*)=(\w+)")
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
_OTHER = {**dict(PAIRS), **{second: first for first, second in PAIRS}}
_INEFFECTIVE = {
    "mode": "add -m for a sweep",
    "searchpath": "write --config-dir=<directory>",
    "callbacks": "write callbacks=<choice>",
    "launcher": "add sweep.jobs=<number of points that train in parallel>",
    **dict.fromkeys(
        ("run", "sweep", "output_subdir", "job"), "write runs_dir=<directory> and name=<name>"
    ),
}
"""Sections of Hydra's configuration for running jobs, and what to write instead."""


@reading_configuration()
def rewrite(overrides: list[str], config_dir: str | None = None) -> tuple[list[str], str | None]:
    """Return the completed overrides, and the user's directory of choices.

    That is the one that is given, else that of the resumed run, else `conf` where the command
    starts.

    Setting one key of a pair unsets the other: `train.steps=100` alone is enough.
    `checkpoint=best` and `checkpoint=<step>` set `checkpoint.use` and keep the group's choice. The
    overrides of a resumed run come first, so that new ones win.

    Raises:
        ConfigError: `resume` names no run, or one whose directory of choices is gone.
    """
    overrides = [_expand(item) for item in overrides]
    if masks := [item for item in overrides if MASK in item]:
        key = override_key(masks[0])
        raise ConfigError(f"{masks[0]} is what a record shows; write {key}=<the secret itself>")
    resume = next(
        (_value(item) for item in reversed(overrides) if override_key(item) == "resume"), "auto"
    )
    if resume not in ("auto", "never", "null", ""):
        saved = _saved_command(resume)
        kept = _without(saved.get("overrides") or [], overrides)
        if masks := [override_key(item) for item in kept if MASK in item]:
            raise ConfigError(
                f"resume ({resume}): {masks[0]} was masked in its run.json, because it holds a "
                f"secret; give it again: {masks[0]}=<value>"
            )
        overrides = [*kept, *overrides]
        config_dir = config_dir or _saved_dir(resume, saved)
    overrides = [item for item in overrides if _is_for_hydra(item)]
    keys = {override_key(item) for item in overrides}
    nulls = [
        f"{_OTHER[key]}=null"
        for item in overrides
        if _sets_one(item) and _OTHER[key := override_key(item)] not in keys
    ]
    return [*overrides, *dict.fromkeys(nulls)], config_dir or found_directory()


def found_directory() -> str | None:
    """Return the directory `conf` of the working directory, if it holds choices of the user's.

    It holds some if it has a directory named as a group. One with a `config.yaml` is not taken: it
    is that of another program, or of a checkout of this one.
    """
    directory = os.path.abspath("conf")
    is_whole = any(os.path.exists(os.path.join(directory, name)) for name in OURS)
    has_group = any(os.path.isdir(os.path.join(directory, group)) for group in GROUPS)
    return directory if has_group and not is_whole else None


def resume_override(run: Path | str) -> str:
    """Return the override that continues a run, at a path or address."""
    return path_override("resume", run)


def path_override(key: str, path: Path | str) -> str:
    """Return the override of a key by a path or address, quoted as Hydra needs it."""
    text = str(path)
    quoted = text if _PLAIN.fullmatch(text) else '"' + text.replace('"', '\\"') + '"'
    return f"{key}={quoted}"


def override_key(override: str) -> str:
    """Return the key or group that an override sets, a group with its place: `model@task.a`."""
    return override.partition("=")[0].lstrip("+~")


def _expand(override: str) -> str:
    r"""Return an override in the form that Hydra takes.

    `checkpoint.use=best` for `checkpoint=best`, and likewise for a step: the group's choices say
    when to save, which is another matter. `++dataset.columns={Jitter\(%\):ignored}` for
    `dataset.columns.Jitter(%)=ignored`: the names of columns are the user's.
    """
    if column := _COLUMN.fullmatch(override):
        name = re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", column[1])
        return f"++dataset.columns={{{name}:{column[2]}}}"
    value = _value(override)
    if override_key(override) == "checkpoint" and (value in USED or value.isdecimal()):
        return f"checkpoint.use={value}"
    return override


def _is_for_hydra(override: str) -> bool:
    """Check the form of an override; return False for `experiment=null`, which Hydra rejects."""
    key = override_key(override)
    value = _value(override)
    if not key:
        raise ConfigError(f"'{override}' is not an override; write key=value or group=choice")
    # Hydra composes only: the keys with which it runs jobs are refused.
    if key.startswith("hydra.") and (fix := _INEFFECTIVE.get(key.split(".")[1])):
        raise ConfigError(f"{key} does nothing here; {fix}")
    group = key.partition("@")[0]
    # A choice may be one of the user's own.
    if group not in GROUPS and (gone := removal(override)):
        raise ConfigError(gone)
    if group in ONE_CHOICE and value.startswith("["):
        raise ConfigError(
            f"{key} ({value}) must be one choice; write {key}=<choice>, "
            f"or -m {key}=<choice>,<choice> to try each"
        )
    if group not in GROUPS or override.startswith("~") or not _NO_NAME.fullmatch(value):
        return True
    if (key, value) != ("experiment", "null"):
        raise ConfigError(
            f"{key} ({value}) must be the name of a choice; see --help for the choices"
        )
    return False


def _sets_one(override: str) -> bool:
    return (
        override_key(override) in _OTHER
        and not override.startswith("~")
        and _value(override) != "null"
    )


def _saved_command(resume: str) -> Mapping[str, Any]:
    if "," in resume and not Path(resume).exists():
        raise ConfigError(f"resume ({resume}) must be one run; resume runs one at a time")
    if line := run_problem(resume):
        raise ConfigError(line)
    if addresses.is_remote(resume):
        from trainer.store.remote_view import read_remote  # a run in a folder does not need it

        return latest_command(read_remote(resume))
    return latest_command(read(Path(resume).expanduser()))


def _saved_dir(resume: str, saved: Mapping[str, Any]) -> str | None:
    directory = saved.get("config_dir")
    if directory and not Path(directory).is_dir():
        if moved := found_directory():  # with the project, perhaps
            return moved
        raise ConfigError(
            f"resume ({resume}) was trained with --config-dir={directory}, "
            "where no directory is now; add --config-dir=<directory>"
        )
    return directory


def _without(saved: Iterable[str], new: Iterable[str]) -> list[str]:
    """Return the saved overrides that new ones do not replace.

    A new override replaces that of the same key, of the other key of its pair, and in its group the
    options and the groups within.
    """
    # What the earlier command was allowed to change, this one is not; nor does it pause there.
    keys = {
        "resume_allow",
        "pause.at_step",
        "pause.at_epoch",
        *(override_key(item) for item in new),
    }
    keys |= {_OTHER[key] for key in keys if key in _OTHER}
    chosen = tuple(f"{section(key)}." for key in keys if re.split("[@/]", key)[0] in GROUPS)
    return [
        item
        for item in saved
        if override_key(item) not in keys and not section(override_key(item)).startswith(chosen)
    ]


def section(key: str) -> str:
    """Return the dotted key of a section: of `dataset/normalize`, or of `model@task.generator`."""
    group, _, place = key.partition("@")
    return place or group.replace("/", ".")


def _value(override: str) -> str:
    value = override.partition("=")[2].strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
