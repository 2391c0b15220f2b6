"""run.json: where a run comes from. Command, code, versions, devices, and every command that has continued it. No TensorFlow."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.files import write_atomically

_PACKAGES = ("tensorflow", "tf-keras", "tensorboard", "numpy", "hydra-core", "omegaconf", "steadfast")
_MAX_DIFF = 1_000_000
_MAX_FILES = 5


def describe(path: Path, overrides: list[str], config_dir: str | None) -> None:
    """Writes run.json of a new run."""
    _write(
        path, {**_command(overrides, config_dir), "git": _git(), "devices": None, "num_replicas": None, "total_steps": None, "lineage": []}
    )


def read(path: Path) -> dict[str, Any]:
    """Reads the record of a run; an empty one if there is none.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        record = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"resume ({path}): its run.json cannot be read: {error}") from error
    return record if isinstance(record, dict) else {}


def latest(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Gives what is recorded of the last command that trained the run."""
    return (record.get("lineage") or [record])[-1]


def command_line(argv: Sequence[str]) -> str:
    """Words a command as one types it: `python train.py model=cnn`."""
    program = ["python", argv[0]] if argv[0].endswith(".py") else [Path(argv[0]).name]
    return shlex.join([*program, *argv[1:]])


def changed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the keys that later commands have changed since config.yaml was written, each with its value now."""
    return {change["key"]: change["now"] for entry in record.get("lineage", ()) for change in entry["changes"]}


def add_entry(path: Path, overrides: list[str], config_dir: str | None, checkpoint: int | None, changes: Sequence[Any]) -> list[str]:
    """Records that a command continues the run.

    Args:
        path: the run directory, which must be locked.
        overrides: the command's.
        config_dir: likewise.
        checkpoint: the newest checkpoint's step; None: there is none yet.
        changes: the keys that differ from what the run was trained with until now.

    Returns:
        How code and versions differ from those of the last command, a line each.
    """
    record = read(path)
    now = {
        **_command(overrides, config_dir),
        "git": _fingerprint(_git()),
        "checkpoint": checkpoint,
        "changes": [{"key": change.key, "before": change.before, "now": change.now} for change in changes],
    }
    then = latest(record)
    _write(path, {**record, "lineage": [*record.get("lineage", ()), now]})
    return _differences(then, now)


def withdraw_entry(path: Path) -> None:
    """Takes the last entry back: its command has come to nothing."""
    record = read(path)
    _write(path, {**record, "lineage": record["lineage"][:-1]})


def complete(path: Path, devices: list[str], num_replicas: int, total_steps: int) -> None:
    """Completes run.json with what only a worker can tell: where the run was begun, and how many steps are asked for now."""
    record = read(path)
    told: dict[str, Any] = {"total_steps": total_steps}
    if record.get("devices") is None:
        told |= {"devices": devices, "num_replicas": num_replicas}
    if record and not told.items() <= record.items():
        _write(path, {**record, **told})


def num_replicas(path: Path) -> int | None:
    """Gives the number of replicas that `complete` has told; None where nobody has."""
    return read(path).get("num_replicas")


def _write(path: Path, record: Mapping[str, Any]) -> None:
    write_atomically(path / "run.json", json.dumps(record, indent=1))


def _command(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    return {
        "argv": sys.argv,
        "overrides": overrides,
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
    """Gives commit and uncommitted changes of the project in the current directory; None outside a repository."""
    try:
        return {"sha": _run_git("rev-parse", "HEAD").strip(), "diff": _run_git("diff", "HEAD")[:_MAX_DIFF]}
    except (OSError, subprocess.SubprocessError):
        return None


def _run_git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10, errors="replace").stdout


def _fingerprint(git: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Gives the state of the code without the whole diff, which the record of the start alone holds."""
    if not git or "diff" not in git:
        return dict(git) if git else None
    return {"sha": git["sha"], "dirty": bool(git["diff"]), "diff_sha256": hashlib.sha256(git["diff"].encode()).hexdigest()}


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    lines = []
    before, after = _fingerprint(then.get("git")), now["git"]
    if before and after:  # elsewhere than in a repository there is nothing to compare
        if before["sha"] != after["sha"]:
            lines.append(f"the code is at commit {after['sha'][:10]}, the run was at {before['sha'][:10]}{_files(before['sha'])}")
        if before["diff_sha256"] != after["diff_sha256"]:
            lines.append(f"uncommitted changes of the code are not those that the run was trained with{_files('HEAD')}")
    if then.get("python") not in (None, now["python"]):
        lines.append(f"this is Python {now['python']}, the run had {then['python']}")
    for name in _PACKAGES:
        had, has = (entry.get("versions", {}).get(name) for entry in (then, now))
        if had != has and "versions" in then:
            lines.append(
                f"this is {name} {has}, the run had {had}" if had and has else f"{name} is {has or 'missing'}, the run had {had or 'none'}"
            )
    return lines


def _files(commit: str) -> str:
    """Names the files in which the working tree differs from a commit, as far as this repository knows it."""
    try:
        files = _run_git("diff", "--name-only", commit, "--").splitlines()
    except (OSError, subprocess.SubprocessError):
        return ""
    more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
    return f" ({', '.join(files[:_MAX_FILES])}{more})" if files else ""
