"""Compares two runs of one experiment: where they differ, and the likely cause."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.files import read_json
from trainer.runs.checkpoint_marker import committed_steps, read_marker
from trainer.runs.ledger import is_clock_name
from trainer.runs.recorded_metrics import read_lines

_CLOCK = {
    "examples_per_sec", "input_wait_fraction", "train_secs", "goodput", "memory_mib",
    "gpu_memory_peak_mib",
}  # fmt: skip
"""The metrics that depend on the clock and on the process, besides those of workers' times."""

_TIME = (
    "something depends on the time or on randomness without a seed: tf.random, a clock, "
    "os.urandom, the order of threads or of a set"
)
_CALLBACK = (
    "a callback keeps what it knows outside of tf.Variable attributes, and forgets it when the "
    "process dies"
)
_UNSAVED = (
    "something that the next step depends on is in no checkpoint: random numbers of tf.random, "
    "Python or NumPy, or a variable or generator of the model's that is no attribute of a layer"
)
_METRICS = "something that the metrics depend on, and the weights do not, is in no checkpoint"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        result: step, metrics and best checkpoint.
        lines: the metrics lines without what depends on the clock.
        variables: a digest of each variable of the last checkpoint.
        kills: step and description of each kill, in order.
    """

    result: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]
    kills: Sequence[tuple[int, str]] = field(default=())

    @property
    def step(self) -> int:
        return int(self.result["step"])

    def __str__(self) -> str:
        return (
            f"step {self.step}, {len(self.variables)} variables, {len(self.lines)} metrics lines, "
            "test metrics and best checkpoint"
        )


def read(run_dir: Path) -> Outcome:
    """Read the outcome of a finished run."""
    result = read_json(run_dir / "result.json")
    lines, _ = read_lines(run_dir / "metrics.jsonl")
    lines = [
        {
            name: value
            for name, value in line.items()
            if name not in _CLOCK and not is_clock_name(name)
        }
        for line in lines
    ]
    directory = run_dir / "checkpoints"
    records = sorted(
        (json.loads(file.read_text()) for file in (run_dir / "faults").glob("*.json")),
        key=lambda record: record["at"],
    )
    return Outcome(
        {name: result.get(name) for name in ("step", "metrics", "validation", "best")},
        lines,
        read_marker(directory, committed_steps(directory)[-1])["variables"],
        [
            (record["step"], f"{record['fault']} ({record['who']} {record['moment']})")
            for record in records
        ],
    )


def differences(straight: Outcome, other: Outcome) -> list[str]:
    """Return a line for each part in which two runs differ; none if they are equal."""
    lines = []
    for name, value in straight.result.items():
        if _text(value) != _text(other.result[name]):
            lines.append(f"result: {name} is {_text(other.result[name])} instead of {_text(value)}")
    if (first := _first_step(straight, other)) is not None:
        lines.append(
            f"metrics: the first line that differs is that of step {first}{_after(other, first)}"
        )
    if names := _variables(straight, other):
        lines.append(
            f"variables: {len(names)} of {len(straight.variables)} differ after the last step, "
            f"the first is {names[0]}"
        )
    return lines


def likely_cause(straight: Outcome, other: Outcome, unrepeatable: bool) -> str:
    """Return the likely cause of a difference.

    Args:
        straight: a run without kills.
        other: a run that differs.
        unrepeatable: whether that was without kills, too.
    """
    if unrepeatable:
        return f"it does not repeat even without a kill: {_TIME}; on a GPU, add deterministic=true"
    names = _variables(straight, other)
    if straight.step != other.step or (
        names and all(name.startswith("callbacks/") for name in names)
    ):
        return _CALLBACK
    return _UNSAVED if names else _METRICS


def _variables(straight: Outcome, other: Outcome) -> list[str]:
    return sorted(
        name
        for name in {*straight.variables, *other.variables}
        if straight.variables.get(name) != other.variables.get(name)
    )


def _first_step(straight: Outcome, other: Outcome) -> int | None:
    """Return the step of the first metrics line in which two runs differ; None: they do not."""
    for line, other_line in zip(straight.lines, other.lines, strict=False):
        if _text(line) != _text(other_line):
            return int(min(line["step"], other_line["step"]))
    shorter, longer = sorted((straight.lines, other.lines), key=len)
    return int(longer[len(shorter)]["step"]) if len(longer) > len(shorter) else None


def _after(other: Outcome, step: int) -> str:
    """Return the last kill before a step, for a message."""
    before = [name for killed, name in other.kills if killed <= step] or [
        name for _, name in other.kills[:1]
    ]
    return f", after {before[-1]}" if before else ""


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # equal where both are NaN, too
