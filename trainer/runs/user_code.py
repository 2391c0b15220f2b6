"""The user's own modules of a run: a fingerprint of each source file, so that edits are noticed.

The user's are all modules but those of Python, of installed packages and of Steadfast. In a
checkout of Steadfast its models and datasets are the user's too, who adds to them there. No
TensorFlow.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config.options import signatures

_MAX_NAMES = 5


class ImportedCode:
    """The user's modules that this process has imported, each as it was when it was first seen.

    Attributes:
        fingerprints: file and SHA-256 of each module by its name.
    """

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
            # AutoGraph writes functions into files of its own, under other names each time.
            others = name.startswith("__autograph_generated_file") or file.startswith(self._others)
            is_users = file.endswith(".py") and not others
            if is_users and (digest := _digest(Path(file))):
                self.fingerprints[name] = {"file": os.path.abspath(file), "sha256": digest}


def changed(fingerprints: Any) -> list[str]:
    """Return the files that are not as they were, or are gone, from the record of a run."""
    files = []
    for name, fingerprint in fingerprints.items() if isinstance(fingerprints, Mapping) else ():
        # By name first: the project may have been moved, or be that of another machine.
        file = signatures.source(name) or Path(fingerprint["file"])
        if _digest(file) != fingerprint["sha256"]:
            here = file.is_relative_to(Path.cwd())
            files.append(str(file.relative_to(Path.cwd()) if here else file))
    return sorted(files)


def warning(fingerprints: Any) -> str | None:
    """Return a line about code that has changed since a run was trained; None: none has."""
    files = changed(fingerprints)
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
