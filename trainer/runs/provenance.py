"""run.json: the provenance of a run: command, code, versions, devices, and later commands."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.errors import DamagedError
from trainer.files import read_json, write_json
from trainer.runs import user_code
from trainer.runs.secret_masking import MASK, masked, shown_word

_PACKAGES = (
    "tensorflow",
    "tf-keras",
    "tensorboard",
    "numpy",
    "hydra-core",
    "omegaconf",
    "steadfast",
)
_MAX_DIFF = 1_000_000


def create(
    path: Path, overrides: list[str], config_dir: str | None, *, with_diff: bool = True
) -> None:
    """Write run.json of a new run.

    Args:
        path: the run directory.
        overrides: of the command.
        config_dir: of the command.
        with_diff: whether the uncommitted changes are recorded themselves, not only their hash.
    """
    git = _git()
    _write(
        path,
        {
            **_command(overrides, config_dir),
            "git": git if with_diff else _fingerprint(git),
            "devices": None,
            "num_replicas": None,
            "total_steps": None,
            "lineage": [],
        },
    )


def read(path: Path) -> dict[str, Any]:
    """Return the record of a run, empty if there is none.

    Args:
        path: the run directory.

    Raises:
        DamagedError: it cannot be read.
    """
    try:
        return read_json(path / "run.json")
    except FileNotFoundError:
        return {}
    except DamagedError as error:
        fix = "repeat the command that began the run, which writes it anew"
        raise DamagedError(path / "run.json", error.reason, fix) from error


def latest_command(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of the last command that trained the run."""
    return (record.get("lineage") or [record])[-1]


def format_command(argv: Sequence[str]) -> str:
    """Return a command as a user types it, without secrets: `python train.py model=cnn`."""
    argv = [*map(shown_word, argv)]
    program = ["python", argv[0]] if argv[0].endswith(".py") else [Path(argv[0]).name]
    return shlex.join([*program, *argv[1:]])


def changed_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that later commands have changed in config.yaml, with their values now.

    A secret is none of them: the record does not have it.
    """
    return {
        change["key"]: change["now"]
        for entry in record.get("lineage", ())
        for change in entry.get("changes", ())
        if MASK not in str(change["now"])
    }


def add_entry(
    path: Path,
    overrides: list[str],
    config_dir: str | None,
    checkpoint: int | None,
    changes: Sequence[Any],
) -> list[str]:
    """Record a command that continues the run.

    Args:
        path: the run directory, which must be locked.
        overrides: of the command.
        config_dir: of the command.
        checkpoint: the step of the newest checkpoint; None: there is none yet.
        changes: the keys whose values differ from those of the run so far.

    Returns:
        The differences of code and versions from the last command, one line each.
    """
    record = read(path)
    current = {
        **_command(overrides, config_dir),
        "git": _fingerprint(_git()),
        "checkpoint": checkpoint,
        "changes": [
            dict(zip(("key", "before", "now"), (change.key, *change.shown), strict=True))
            for change in changes
        ],
    }
    previous = latest_command(record)
    _write(path, {**record, "lineage": [*record.get("lineage", ()), current]})
    # What names the user's files says it better than what names all that git sees.
    is_told = bool(user_code.changed(record.get("code")))
    return _differences(previous, current, code=not is_told)


def withdraw_entry(path: Path) -> None:
    """Remove the last entry: its command has saved nothing."""
    record = read(path)
    _write(path, {**record, "lineage": record["lineage"][:-1]})


def complete(
    path: Path,
    devices: list[str],
    num_replicas: int,
    total_steps: int,
    threads: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    steps_per_epoch: float | None = None,
) -> None:
    """Add what only a worker knows: devices of the first attempt, and the current length.

    Args:
        path: the run directory.
        devices: names of the devices.
        num_replicas: number of replicas.
        total_steps: number of steps.
        threads: threads of an operation, if the run fixes them.
        metrics: which of their directions is better, and which is the primary one.
        steps_per_epoch: length of an epoch in steps; None: there are no epochs.
    """
    record = read(path)
    facts: dict[str, Any] = {"total_steps": total_steps, "steps_per_epoch": steps_per_epoch}
    if metrics is not None:
        facts["metrics"] = metrics
    if record.get("devices") is None:
        facts |= {"devices": devices, "num_replicas": num_replicas}
        if threads is not None:
            facts["threads"] = threads
    add_facts(path, **facts)


def add_facts(path: Path, **facts: Any) -> None:
    """Add facts to the record of a run, or change them."""
    record = read(path)
    if record and not facts.items() <= record.items():
        _write(path, {**record, **facts})


def code_warning(path: Path) -> str | None:
    """Return a line about code that has changed since a run was trained; None: none has."""
    with suppress(DamagedError):
        return user_code.warning(read(path).get("code"))
    return None


def num_replicas(path: Path) -> int | None:
    """Return the number of replicas of the first attempt, or None if it has not come so far."""
    return read(path).get("num_replicas")


def num_threads(path: Path) -> int | None:
    """Return the number of threads that the run has fixed, or None."""
    return read(path).get("threads")


def _write(path: Path, record: Mapping[str, Any]) -> None:
    write_json(path / "run.json", record)


def _command(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    return {
        "argv": [shown_word(word) for word in sys.argv],
        "overrides": [shown_word(item) for item in overrides],
        "config_dir": config_dir,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Return commit and uncommitted changes in the current directory; None outside a repository."""
    try:
        diff = _run_git("diff", "HEAD")[:_MAX_DIFF]
        return {
            "sha": _run_git("rev-parse", "HEAD").strip(),
            "dirty": bool(diff),
            "diff_sha256": hashlib.sha256(diff.encode()).hexdigest(),
            "diff": masked(diff),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def _run_git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
        errors="replace",
    ).stdout


def _fingerprint(git: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the state of the code, with a hash instead of the whole diff."""
    if not git:
        return None
    return {name: value for name, value in git.items() if name != "diff"}


def _differences(
    previous: Mapping[str, Any], current: Mapping[str, Any], *, code: bool
) -> list[str]:
    lines = []
    before = _fingerprint(previous.get("git"))
    after = current["git"]
    if code and before and after:  # both None outside a repository
        if before["sha"] != after["sha"]:
            lines.append(
                f"the code is at commit {after['sha'][:10]}, the run was at {before['sha'][:10]}"
            )
        if before.get("diff_sha256") != after["diff_sha256"]:
            lines.append(
                "uncommitted changes of the code are not those that the run was trained with"
            )
    if previous.get("python") not in (None, current["python"]):
        lines.append(f"this is Python {current['python']}, the run had {previous['python']}")
    for name in _PACKAGES:
        old, new = (entry.get("versions", {}).get(name) for entry in (previous, current))
        if old != new and "versions" in previous:
            lines.append(
                f"this is {name} {new}, the run had {old}"
                if old and new
                else f"{name} is {new or 'missing'}, the run had {old or 'none'}"
            )
    return lines
