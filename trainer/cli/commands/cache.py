"""The command `cache`: lists the copies of data on this machine, or removes them. No TensorFlow."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.cli.arguments import Parser
from trainer.cli.commands.command_arguments import DEFAULT_FOLDER, runs_in
from trainer.cli.terminal import Terminal
from trainer.errors import DONE
from trainer.text import format_bytes
from trainer.user_cache import FOLDER, CachedFile, cached_files

_BEGINNING_SECS = 3600.0
"""How long `fit` may take from what it keeps to its run."""


def run(arguments: Sequence[str]) -> int:
    """Print the copies of data and when they were last used, or remove them."""
    parser = Parser("cache", "what a run of runs/ needs is never removed")
    parser.add_argument(
        "--clear", action="store_true", help="remove them; they are rebuilt when needed"
    )
    clears = parser.parse_args(arguments).clear
    files = [*cached_files(FOLDER.expanduser()), *_unused_inputs(DEFAULT_FOLDER)]
    if not files:
        print(f"No copies of data in {FOLDER}, and none in {DEFAULT_FOLDER} that no run needs.")
        return DONE
    for file in files if clears else ():
        shutil.rmtree(file.path) if file.path.is_dir() else file.path.unlink(missing_ok=True)
    rows = [(str(file.path), format_bytes(file.size), _day(file.used)) for file in reversed(files)]
    Terminal().show_table([("file", "size", "last used"), *rows], "<><")
    total = format_bytes(sum(file.size for file in files))
    print(f"{total} removed." if clears else f"{total}; --clear removes them.")
    return DONE


def _unused_inputs(runs: Path) -> list[CachedFile]:
    """Return the models and data that `fit` has kept and that no run of a folder names."""
    kept = sorted((runs / "inputs").glob("[!.]*"))
    configs = [path / "config.yaml" for path in runs_in(runs)] if kept else []
    named = "".join(path.read_text(encoding="utf-8", errors="replace") for path in configs)
    unused = []
    for path in kept:
        used = path.stat().st_mtime
        if path.name not in named and used < time.time() - _BEGINNING_SECS:
            files = [file.stat() for file in (path, *path.rglob("*"))]
            unused.append(CachedFile(used, sum(file.st_blocks for file in files) * 512, path))
    return unused


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
