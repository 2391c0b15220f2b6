"""run.json: the provenance of a run: command, code, versions, devices, and later commands.

The code of the user is recorded by a fingerprint of each source file, so that edits are noticed.
The user's are all modules but those of Python, of installed packages and of Steadfast. In a
checkout of Steadfast its models and datasets are the user's too, who adds to them there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trainer
from trainer.config.options import signatures
from trainer.errors import DamagedError
from trainer.files import read_json, write_json
from trainer.runs.secret_masking import MASK, masked, shown_word

_PACKAGES = (
    "tensorflow",
    "tf-keras",
    "tensorboard",
    "numpy",
    "hydra-core",
    "omegaconf",
)
_MAX_DIFF = 1_000_000
_OF_DEVICES = ("devices", "num_replicas", "threads")
_MAX_NAMES = 5


def create(
    path: Path, overrides: list[str], config_dir: str | None, *, with_diff: bool = True
) -> None:
    """Write run.json of a new run; without `with_diff` it has but a hash of uncommitted changes."""
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
    """Return the record of a run, or an empty one; raise a DamagedError at a bad one."""
    try:
        return read_json(path / "run.json")
    except FileNotFoundError:
        return {}
    except DamagedError as error:
        fix = "repeat the command that began the run, which writes it again"
        raise DamagedError(path / "run.json", error.reason, fix) from error


def latest_command(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of the last command that trained the run."""
    return (record.get("lineage") or [record])[-1]


def format_command(argv: Sequence[str]) -> str:
    """Return a command as a user types it, without secrets: `python train.py model=cnn`."""
    argv = [*map(shown_word, argv)]
    program = ["python", argv[0]] if argv[0].endswith(".py") else [Path(argv[0]).name]
    return shlex.join([*program, *argv[1:]])


def entry_command(entry: Mapping[str, Any]) -> str:
    """Return the command of an entry; of a point of a sweep, the one that trains it alone."""
    argv = entry["argv"]
    if {"-m", "--multirun"} & {*argv}:
        folder = entry.get("config_dir")
        argv = [argv[0], *(["--config-dir", folder] if folder else []), *entry["overrides"]]
    return format_command(argv)


def changed_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that later commands have changed in config.yaml, with their values now.

    Without secrets: the record does not have them.
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

    Returns:
        The differences of versions from the last command, one line each.
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
    return _differences(previous, current)


def withdraw_entry(path: Path) -> None:
    """Remove the last entry: its command has saved nothing."""
    record = read(path)
    _write(path, {**record, "lineage": record["lineage"][:-1]})


def update(path: Path, **facts: Any) -> None:
    """Add facts to the record of a run, or change them; those of devices are never changed."""
    record = read(path)
    if record.get("devices") is not None:  # of the first attempt
        facts = {name: fact for name, fact in facts.items() if name not in _OF_DEVICES}
    if record and not facts.items() <= record.items():
        _write(path, {**record, **facts})


def num_replicas(path: Path) -> int | None:
    """Return the number of replicas of the first attempt, or None if it has not come so far."""
    return read(path).get("num_replicas")


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
        "versions": {name: version for name in _PACKAGES if (version := _version(name))}
        | {"steadfast": trainer.__version__},
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


def _differences(previous: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    lines = []
    if previous.get("python") not in (None, current["python"]):
        lines.append(f"this is Python {current['python']}, the run had {previous['python']}")
    for name in (*_PACKAGES, "steadfast"):
        old, new = (entry.get("versions", {}).get(name) for entry in (previous, current))
        if old != new and "versions" in previous:
            lines.append(
                f"this is {name} {new}, the run had {old}"
                if old and new
                else f"{name} is {new or 'missing'}, the run had {old or 'none'}"
            )
    return lines


class ImportedCode:
    """The user's modules, by name, as they were when first seen: their files and SHA-256."""

    def __init__(self) -> None:
        self.fingerprints: dict[str, dict[str, str]] = {}
        self._seen = {"__main__", "__mp_main__"}
        paths = sysconfig.get_paths()
        folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        folders += [path for path in sys.path if any(Path(path).glob("*.dist-info"))]
        folders.append(str(Path(__file__).parents[1]))
        both = {*folders, *map(os.path.realpath, folders)}
        self._others = tuple(f"{folder}{os.sep}" for folder in both)

    def update(self) -> None:
        """Add the modules that were imported since the last call."""
        for name in set(sys.modules) - self._seen:
            self._seen.add(name)
            file = str(getattr(sys.modules.get(name), "__file__", None) or "")
            # AutoGraph writes functions into new files, under other names each time.
            others = name.startswith("__autograph_generated_file") or file.startswith(self._others)
            is_users = file.endswith(".py") and not others
            if is_users and (digest := _digest(Path(file))):
                self.fingerprints[name] = {"file": os.path.abspath(file), "sha256": digest}


def changed_files(record: Mapping[str, Any]) -> list[str]:
    """Return the files of the user that are not as they were, or are gone."""
    code = record.get("code")
    files = []
    for name, fingerprint in code.items() if isinstance(code, Mapping) else ():
        # By name first: the project may have been moved, or be that of another machine.
        file = signatures.source(name) or Path(fingerprint["file"])
        if _digest(file) != fingerprint["sha256"]:
            here = file.is_relative_to(Path.cwd())
            files.append(str(file.relative_to(Path.cwd()) if here else file))
    return sorted(files)


def code_warning(path: Path) -> str | None:
    """Return a line about code that has changed since a run was trained, or None."""
    try:
        files = changed_files(read(path))
    except DamagedError:
        return None
    if not files:
        return None
    more = f" and {len(files) - _MAX_NAMES} more" if len(files) > _MAX_NAMES else ""
    return (
        f"the run was trained with other code in {', '.join(files[:_MAX_NAMES])}{more}; for a run "
        "with the code as it is now use resume=never, or another name=<name>"
    )


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    except OSError:
        return None
