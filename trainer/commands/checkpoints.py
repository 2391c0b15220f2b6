"""The command `checkpoints <run>`: lists what a run has saved and verifies it, file by file. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer import config, markers, rundir
from trainer.commands.arguments import Parser, run_at
from trainer.exitcodes import CRASHED, DONE
from trainer.policies import Best, EveryNth, Newest, Saved, keep_policies
from trainer.schema import Checkpoint
from trainer.tables import aligned

_REASONS = {Newest: "newest", EveryNth: "every n-th", Best: "best"}
_HEAD = ("step", "saved", "size", "kept as", "metrics", "files")
_ALIGN = "><><<<"


def run(arguments: Sequence[str]) -> int:
    """Prints the checkpoints of the run that the arguments name.

    Returns:
        The exit code: 0, or 1 if a checkpoint is damaged.

    Raises:
        ConfigError: there is no such run.
    """
    parser = Parser("checkpoints", "exit code: 0, or 1 if a checkpoint is damaged")
    parser.add_argument("run", help="a run directory")
    path = run_at("checkpoints", parser.parse_args(arguments).run)
    directory = path / "checkpoints"
    rows, damaged = _rows(directory, _config(path))
    if not rows:
        print(f"{path} has no checkpoint yet.")
    else:
        print(*aligned([_HEAD, *rows], _ALIGN), sep="\n")
    for step in sorted(markers.unfinished(directory)):
        names = ", ".join(file.name for file in markers.data_files(directory, step))
        print(f"unfinished: {names}; being written now, or left by a kill: the next save removes them")
    return CRASHED if damaged else DONE


def _config(path: Path) -> Checkpoint:
    """Gives the keys of `checkpoint` that the run was last trained with."""
    node: dict[str, Any] = {}
    for key, value in rundir.trained_with(path).items():
        if key.startswith("checkpoint."):
            _, *parents, last = key.split(".")
            place = node
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
    return config.restore({"checkpoint": node}).checkpoint


def _rows(directory: Path, checkpoint: Checkpoint) -> tuple[list[Sequence[str]], bool]:
    """Gives a row for each checkpoint, ascending, and whether any is damaged."""
    found = {step: (markers.marker(directory, step), markers.verify(directory, step)) for step in markers.committed(directory)}
    # Without those that the run, which may be training, has removed meanwhile.
    still_there = markers.committed(directory)
    found = {step: told for step, told in found.items() if step in still_there}
    saved = [Saved(step, marker["metrics"]) for step, (marker, _) in found.items()]
    kept = [(_REASONS[type(policy)], policy.kept(saved)) for policy in keep_policies(checkpoint)]
    rows: list[Sequence[str]] = [
        (
            str(step),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(marker["time"])) if "time" in marker else "-",
            _size(sum(file["bytes"] for file in marker["files"].values())),
            ", ".join(reason for reason, steps in kept if step in steps) or "-",
            ", ".join(f"{name} {value:.4f}" for name, value in marker["metrics"].items()) or "-",
            f"DAMAGED: {problem}" if problem else "verified",
        )
        for step, (marker, problem) in found.items()
    ]
    return rows, any(problem for _, problem in found.values())


def _size(count: float) -> str:
    if not count:
        return "-"
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
