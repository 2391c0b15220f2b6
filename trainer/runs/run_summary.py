"""A run in a few numbers, and how it differs from others: for lists of many runs. No TensorFlow.

Only what a list needs is read, so that 200 runs take a fraction of a second. A damaged file is as
good as a missing one.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainer.config.directions import Directions
from trainer.config.options.constraints import format_plain
from trainer.config.schema import GROUPS
from trainer.errors import DamagedError
from trainer.files import read_bytes
from trainer.runs import (
    directory,
    identity,
    provenance,
    recorded_metrics,
)
from trainer.runs.ledger import Mark, Tally
from trainer.runs.secret_masking import shown
from trainer.runs.status import RunStatus, State, run_status
from trainer.text import short_keys

_Any = TypeVar("_Any")
_TURNS = (b'"begin"', b'"start"', b'"restart"', b'"exit"', b'"workers"')
"""What the lines of a ledger have between which time only passes."""

_CHOICES = [
    group
    for group in GROUPS
    if group not in ("checkpoint", "writers", "launch", "search", "experiment")
]
_ABBREVIATIONS = {"learning_rate": "lr", "global_size": "batch"}
_MAX_LABEL = 6
_LONG_PATH = re.compile(r"^[^ ]{20,}(?=(/[^/ ]+){2}$)")
_NOTHING = ("null", "{}", "none")
_MISSING = object()


@dataclass(frozen=True)
class RunSummary:
    """A run in a few numbers.

    Attributes:
        step: number of updates made, those since the newest checkpoint included while it trains.
        metrics: the newest metrics of the split by which is selected, by name.
        test: with a validation split the newest metrics of the test split.
        best: step and value of the best evaluation by the primary metric, or None.
        eta_secs: how long it will train on; None: unknown, or it does not train now.
        why: what happened to a failed run, one line.
    """

    path: Path
    state: State
    step: int
    total: int | None
    config: Mapping[str, Any]
    directions: Directions
    metrics: Mapping[str, float]
    split: str
    test: Mapping[str, float]
    best: tuple[int, float] | None
    secs: float | None
    eta_secs: float | None
    active: float
    sizes: Sequence[tuple[int, int]]
    why: str
    command: str

    @property
    def metric(self) -> str:
        """The metric to show: the primary one, or the loss if that has no value."""
        name = self.directions.primary
        return name if name in self.metrics or self.best else "loss"

    def plain(self, differing: Mapping[str, str], label: str) -> dict[str, Any]:
        """Return it for JSON, with its `differences` and `labels`."""
        best_step, best = self.best or (None, None)
        return {
            "label": label,
            "differs": dict(differing),
            "state": self.state,
            "step": self.step,
            "total_steps": self.total,
            "secs": self.secs and round(self.secs, 3),
            "eta_secs": self.eta_secs and round(self.eta_secs, 3),
            "metrics": dict(self.metrics),
            "split": self.split,
            "test": dict(self.test),
            "metric": self.metric,
            "best": best,
            "best_step": best_step,
            "active": round(self.active, 3),
            "workers": self.sizes,
            "why": self.why,
            "command": self.command,
        }


def summarize(path: Path) -> RunSummary:
    """Return the summary of the run in a directory, which may train, or be damaged."""
    status = _attempt(lambda: run_status(path), RunStatus(State.STOPPED))
    record: Mapping[str, Any] = _attempt(lambda: provenance.read(path), dict[str, Any]())
    total = record.get("total_steps")
    total = total if isinstance(total, int) else None
    directions = _attempt(lambda: recorded_metrics.read_directions(path), Directions())
    tally, rate = _time(path)
    secs = sum(tally.secs.values()) if tally.last else None
    step, eta_secs = status.step, None
    if status.state is State.RUNNING and tally.last and secs is not None:
        quiet_secs = max(0.0, time.time() - tally.last.time)
        secs += quiet_secs
        step = max(step, tally.last.step or 0)
        if rate and total:
            eta_secs = max(0.0, (total - step) / rate - quiet_secs)
    return RunSummary(
        path=path,
        state=status.state,
        step=step,
        total=total,
        config=_attempt(lambda: _config(path, record), {}),
        directions=directions,
        metrics=status.metrics,
        split=status.split,
        test=status.test,
        best=_attempt(lambda: _best(path, status.split, directions), None),
        secs=secs,
        eta_secs=eta_secs,
        active=last_write(path),
        sizes=tally.sizes,
        why=status.error,
        command=_attempt(lambda: provenance.entry_command(record), ""),
    )


def differences(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return for each run the values of the keys in which the runs differ, by short key.

    A choice is compared by its target: `model` is `cnn`. The options of a choice are compared with
    those of the same choice. The keys with the most values come first, a seed last. What is not
    set, such as `metrics=null`, is left out.

    Args:
        configs: the configuration of each run by dotted key; an empty one differs in nothing.
    """
    values = [identity.completed(config) for config in configs if config]
    choices = {group: [_choice(each, group) for each in values] for group in _CHOICES}
    columns: dict[str, Sequence[str | None]] = {
        group: each for group, each in choices.items() if len(set(each)) > 1
    }
    for key in dict.fromkeys(key for each in values for key in each):
        if all(each.get(key, _MISSING) == values[0].get(key, _MISSING) for each in values):
            continue
        column = [_format(each[key]) if key in each else None for each in values]
        if _tells(key, values) and _differs(column, choices, key):
            columns[key] = column
    keys = sorted(columns, key=lambda key: (key == "seed", -len({*columns[key]} - {None})))
    names = short_names(keys)
    rows = (
        {
            name: text
            for key, name in zip(keys, names, strict=True)
            if (text := columns[key][index]) and text not in _NOTHING
        }
        for index in range(len(values))
    )
    return [next(rows) if config else {} for config in configs]


def short_names(keys: Sequence[str]) -> list[str]:
    """Return short names of dotted keys: `lr` for `optimizer.learning_rate`."""
    return [_ABBREVIATIONS.get(name, name) for name in short_keys(keys)]


def labels(differing: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the label of each run, without the values that more than half of the runs share."""
    counts = Counter(pair for each in differing for pair in each.items())
    return [
        label(dict(pair for pair in each.items() if 2 * counts[pair] <= len(differing)))
        for each in differing
    ]


def label(differing: Mapping[str, str]) -> str:
    """Return what distinguishes a run from others in one line: `lr=0.01 model=cnn`.

    A long path is cut to its last two parts.
    """
    shown = [*differing.items()][:_MAX_LABEL]
    return " ".join(f"{key}={_LONG_PATH.sub('...', value)}" for key, value in shown)


def _attempt(read: Callable[[], _Any], default: _Any) -> _Any:
    """Return what can be read, or the default: a list shows a run with any damage."""
    try:
        return read()
    except Exception:
        return default


def _config(path: Path, record: Mapping[str, Any]) -> Mapping[str, Any]:
    status = (path / "config.yaml").stat()
    written = _written_config(path, status.st_mtime_ns, status.st_size)
    return {**written, **provenance.changed_values(record)}


@functools.lru_cache(1000)
def _written_config(path: Path, mtime: int, size: int) -> Mapping[str, Any]:
    """Return the leaves of config.yaml as shown, which a list that is repeated parses once."""
    return dict(identity.flatten(shown(directory.read_config(path))))


def _best(path: Path, split: str, directions: Directions) -> tuple[int, float] | None:
    mode = directions.mode(directions.primary)
    better = min if mode == "min" else max
    points = [
        (step, value)
        for step, metrics in recorded_metrics.read_evaluations(path, split)
        if (value := metrics.get(directions.primary)) is not None and value == value
    ]
    return better(points, key=lambda point: point[1], default=None) if mode else None


def _time(path: Path) -> tuple[Tally, float | None]:
    """Return the time of a run, not by category, and the steps a second of its last attempt."""
    tally = Tally()
    lines: list[bytes] = []
    with suppress(FileNotFoundError, DamagedError):
        lines = read_bytes(path / "ledger.jsonl").splitlines()
    turns = [index for index, line in enumerate(lines) if any(word in line for word in _TURNS)]
    kept = {index + offset for index in turns for offset in (-1, 0, 1, 2)} | {len(lines) - 1}
    first: Mark | None = None
    for index in sorted(kept & set(range(len(lines)))):
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            mark = Mark(**json.loads(lines[index].decode()))
            tally.add(mark)
            first = None if mark.phase in ("begin", "start", "restart") else first
            if first is None and mark.phase == "step":
                first = mark
    last = tally.last
    if first is None or last is None or first.step is None or last.step is None:
        return tally, None
    secs = last.time - first.time
    return tally, (last.step - first.step) / secs if secs > 0 else None


def last_write(path: Path) -> float:
    """Return when a file of a run was last written; a file, or all, may vanish meanwhile."""
    times = [0.0]
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                times.append(entry.stat().st_mtime)
    return max(times)


def _choice(values: Mapping[str, Any], group: str) -> str:
    """Return the choice of a group, or the name of its target if that is the user's own."""
    choice = values.get(f"choices.{group}")
    target = values.get(f"{group}._target_")
    if isinstance(target, str):
        if target.startswith("trainer.fitting.") and values.get("name"):
            return str(values["name"])
        if choice is None or not target.startswith("trainer."):
            return target.rpartition(".")[2]
    return "+".join(map(str, choice)) if isinstance(choice, list) else _format(choice)


def _tells(key: str, values: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a key makes another run, and is no choice, which has its own column."""
    section, _, last = key.rpartition(".")
    if section == "choices" or key == "name" or (last == "_target_" and section in GROUPS):
        return False
    config = next(each for each in values if key in each)
    try:
        return identity.names_run(key, config)
    except LookupError:
        return True


def _differs(column: Sequence[str | None], choices: Mapping[str, Sequence[str]], key: str) -> bool:
    """Return whether runs of one choice have several values of an option."""
    kinds = choices.get(key.partition(".")[0], [""] * len(column))
    return len(set(zip(kinds, column, strict=True))) > len(set(kinds))


def _format(value: Any) -> str:
    return format_plain(identity.normal(value))
