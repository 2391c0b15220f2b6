"""The metrics of a run, from its files: lines, evaluations, which direction is better."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from trainer.config.directions import Directions, of_targets
from trainer.errors import ConfigError, DamagedError
from trainer.files import MAX_LINE_BYTES, read_bytes, regular_file
from trainer.runs import directory, provenance
from trainer.runs.checkpoint_marker import read_marker

Points: TypeAlias = Sequence[tuple[int, float]]
"""Steps, ascending, each with a value, which may be NaN or infinite."""

FILES = ("metrics.jsonl", "evaluations.jsonl")
"""The files of a run that hold lines of metrics, each written by another process."""

_BLOCK_BYTES = 1 << 18
_NUMBERS = (int, float)

_SPLITS = ("validation", "test")
"""What selects uses the first of them that is evaluated."""

NO_METRIC = {"step", "split", "epoch"}
"""What a line holds in addition to metrics."""

GROUPS = {
    "time": r"epoch|examples_per_sec|goodput|input_wait_fraction|train_secs",
    "optimizer": r"(learning_rate|gradient_norm)(/.+)?|updates_skipped",
    "worker": r".+_(step_secs|wait_secs|steps_per_sec)|wait_fraction|staleness_.+|steps_repeated"
    r"|workers|frames(_.+)?",
    "system": r"(gpu_)?memory_.*mib",
}
"""Other values of the training split than metrics: group -> regular expression of names."""


def group_of(name: str) -> str | None:
    """Return the group of what the training split reports in addition to metrics, or None."""
    groups = (group for group, pattern in GROUPS.items() if re.fullmatch(pattern, name))
    return next(groups, None)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a file in order, and the number of those that are damaged.

    A last line that a kill has cut off is not counted; a missing file has no lines.

    Raises:
        DamagedError: something else is in the place of the file, or it cannot be read.
    """
    try:
        *texts, last = read_bytes(path, sys.maxsize).split(b"\n")
    except FileNotFoundError:
        return [], 0
    lines = [parse_line(text) for text in texts if text]
    if end := parse_line(last):
        lines.append(end)
    return [line for line in lines if line], lines.count(None)


def read_evaluations(path: Path, *splits: str) -> list[tuple[int, Mapping[str, float]]]:
    """Return step and metrics of every evaluation, ascending by step.

    Args:
        *splits: that of the first of these splits which has any; none: the one that selects.
    """
    for split in splits or _SPLITS:
        if lines := [line for name in FILES for line in _lines(path / name, split)]:
            break
    return [
        (line["step"], _metrics_of(line)) for line in sorted(lines, key=lambda line: line["step"])
    ]


def read_curves(path: Path) -> dict[tuple[str, str], Points]:
    """Return the points by split and metric, of a step the last; none of an unreadable file."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for name in FILES:
        with suppress(DamagedError):
            for line in read_lines(path / name)[0]:
                for key, value in line.items():
                    if key not in NO_METRIC and value is not None:
                        points = curves.setdefault((line["split"], key), {})
                        points[line["step"]] = float(value)
    return {key: sorted(points.items()) for key, points in curves.items()}


def epoch_metrics(path: Path) -> dict[str, list[float]]:
    """Return the metrics of each complete epoch by name, as `model.fit(...).history` has them.

    Those of the training are the mean over the steps of the epoch, if they were written at its end
    (`summary.every_epochs=1`). Names of those by which is selected start with `val_`.
    """
    evaluations = dict(read_evaluations(path))
    lines = {line["step"]: line for line in reversed(list(_lines(path / FILES[0], "train")))}
    metrics: dict[str, list[float]] = {}
    window: list[tuple[int, Mapping[str, float]]] = []
    last, epoch = 0, 0
    for step, line in sorted(lines.items()):
        window.append((step - last, line))
        last = step
        if line.get("epoch", 0) > epoch:
            epoch = line["epoch"]
            values = {
                name: sum(steps * part[name] for steps, part in window) / sum(s for s, _ in window)
                for name in line
                if name not in NO_METRIC
                and group_of(name) is None
                and all(part.get(name) is not None for _, part in window)
            }
            values |= {f"val_{name}": value for name, value in evaluations.get(step, {}).items()}
            for name, value in values.items():
                metrics.setdefault(name, []).append(value)
            window = []
    return metrics


def newest_metrics(path: Path, steps: Sequence[int]) -> tuple[str, Mapping[str, float]]:
    """Return the split by which is selected and its newest metrics; `steps` ascend."""
    for split in _SPLITS:
        lines = [line for name in FILES if (line := next(_lines(path / name, split), None))]
        if lines:
            return split, _metrics_of(max(lines, key=lambda line: line["step"]))
    markers = (read_marker(path / "checkpoints", step) for step in reversed(steps))
    return "test", next((marker["metrics"] for marker in markers if marker["metrics"]), {})


def read_directions(path: Path) -> Directions:
    """Return the directions as recorded, or as the source declares them; none if unreadable."""
    try:
        record = provenance.read(path).get("metrics")
    except ConfigError:
        record = None
    if isinstance(record, dict):
        return Directions(record["direction"], record["primary"])
    try:
        config = directory.read_config(path)
        metrics = {name: node["_target_"] for name, node in (config["metrics"] or {}).items()}
        task: Any = config["task"]
        return of_targets(task and task["_target_"], metrics)
    except (ConfigError, OSError, KeyError, TypeError, AttributeError):
        return Directions()


def parse_line(text: bytes) -> dict[str, Any] | None:
    """Return a line that has a step, a split and numbers, or None if it is damaged."""
    try:
        line = json.loads(text.decode())  # bytes would take half as long again
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        return None
    if not isinstance(line.get("split"), str):
        return None
    for name, value in line.items():
        if not (isinstance(value, _NUMBERS) or value is None or name == "split"):
            return None
    return line


def _metrics_of(line: Mapping[str, Any]) -> Mapping[str, float]:
    return {name: value for name, value in line.items() if name not in NO_METRIC}


def _lines(path: Path, split: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a split, the newest first; a damaged file counts as empty.

    Lines of other splits are not parsed: most are of the training.
    """
    word = f'"split": {json.dumps(split)}'.encode()
    for content in _blocks(path):
        position = len(content)
        while (position := content.rfind(word, 0, position)) >= 0:
            start = content.rfind(b"\n", 0, position) + 1
            end = content.find(b"\n", position)
            line = parse_line(content[start : end if end >= 0 else len(content)])
            if line and line["split"] == split:
                yield line
            position = start


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield what a file holds from its end on, in blocks of whole lines; one of them is in memory.

    A file that is missing or unreadable counts as empty.
    """
    with suppress(OSError), open(path, "rb", opener=regular_file) as file:
        end = file.seek(0, os.SEEK_END)
        rest = b""
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            rest = file.read(end - begin) + rest
            end = begin
            # What is before the first line break ends a line of the block before.
            cut = rest.find(b"\n") + 1 if begin else 0
            if cut or not begin:
                yield rest[cut:]
                rest = rest[:cut]
            elif len(rest) > MAX_LINE_BYTES:
                return
