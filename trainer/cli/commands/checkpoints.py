"""The command `checkpoints [run]`: lists and verifies the checkpoints of a run. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.cli.arguments import Parser
from trainer.cli.commands.command_arguments import run_at
from trainer.cli.terminal import Terminal
from trainer.config import loading
from trainer.config.schema import Checkpoint
from trainer.errors import CRASHED, DONE, DamagedError
from trainer.runs import checkpoint_marker, directory, recorded_metrics
from trainer.runs.checkpoint_retention import SavedCheckpoint, retention_policies
from trainer.text import first_line, format_bytes, format_metric, printable, without_classes

_HEAD = ("step", "saved", "size", "kept as", "files")
_ALIGN = "><><<"


def run(arguments: Sequence[str]) -> int:
    """Print the checkpoints of the run that the arguments name; return 1 if one is damaged."""
    parser = Parser("checkpoints", "exit code: 0, or 1 if a checkpoint is damaged")
    parser.add_argument(
        "run", nargs="?", help="a run directory; the newest of runs, unless one is named"
    )
    name = parser.parse_args(arguments).run
    path = run_at("checkpoints", name)
    if name is None:
        print(printable(f"{path}, the newest run:"))
    folder = path / "checkpoints"
    try:
        settings = _settings(path)
    except DamagedError as error:
        print(f"warning: {error}")
        settings = Checkpoint()
    rows, damaged = _rows(folder, settings)
    if not rows:
        print(f"{path} has no checkpoint yet.")
    else:
        Terminal().show_table(rows, _ALIGN.ljust(len(rows[0]), ">"), len(_HEAD))
    for step in sorted(checkpoint_marker.unfinished_steps(folder)):
        names = ", ".join(file.name for file in checkpoint_marker.data_files(folder, step))
        print(
            f"unfinished: {names}; being written now, or left by a kill: the next save removes them"
        )
    return CRASHED if damaged else DONE


def _settings(path: Path) -> Checkpoint:
    node: dict[str, Any] = {}
    for key, value in directory.trained_config(path).items():
        if key.startswith("checkpoint."):
            _, *parents, last = key.split(".")
            section = node
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = value
    return loading.restore({"checkpoint": node}).checkpoint


def _rows(folder: Path, checkpoint: Checkpoint) -> tuple[list[Sequence[str]], bool]:
    """Return head and a row for each checkpoint, ascending, if any; and whether one is damaged."""
    checked = {
        step: (checkpoint_marker.read_marker(folder, step), checkpoint_marker.verify(folder, step))
        for step in checkpoint_marker.committed_steps(folder)
    }
    # Without those that the run, which may be training, has removed meanwhile.
    present = checkpoint_marker.committed_steps(folder)
    checked = {step: result for step, result in checked.items() if step in present}
    saved = [SavedCheckpoint(step, marker["metrics"]) for step, (marker, _) in checked.items()]
    directions = recorded_metrics.read_directions(folder.parent)
    try:
        policies = retention_policies(checkpoint, directions)
    except ImportError as error:  # it is in a project elsewhere
        print(f"warning: checkpoint.retention_policy: {first_line(error)}")
        policies = retention_policies(replace(checkpoint, retention_policy=None), directions)
    kept = [(policy.label, policy.kept(saved)) for policy in policies]
    names = list(
        dict.fromkeys(name for each in saved for name in without_classes(each.metrics or {}))
    )
    rows: list[Sequence[str]] = [
        (
            str(step),
            _saved_at(marker),
            _size(sum(file["bytes"] for file in marker["files"].values())),
            ", ".join(reason for reason, steps in kept if step in steps) or "-",
            f"DAMAGED: {problem}" if problem else "verified",
            *(_metric(marker["metrics"].get(name)) for name in names),
        )
        for step, (marker, problem) in checked.items()
    ]
    head = [(*_HEAD, *names)] if rows else []
    return [*head, *rows], any(problem for _, problem in checked.values())


def _metric(value: float | None) -> str:
    return "-" if value is None else format_metric(value)


def _saved_at(marker: Mapping[str, Any]) -> str:
    if "time" not in marker:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(marker["time"]))


def _size(num_bytes: float) -> str:
    return format_bytes(num_bytes) if num_bytes else "-"
