"""The study of a search: the points that it has started, and what they have reported.

A search decides by the study alone. The log, `search.jsonl` in the folder of the sweep, has every
decision before it is carried out, and every report before anything is decided by it. So a command
that continues a killed one reads the same study, and decides the same.

The first line of the log is the search's definition. Each other line is an event, with the number
of its point:

    start, continue     trains until the budget `until` is used, or to the end (null)
    report              an evaluation: `step` and `metrics`
    end                 the outcome of this part of its training
    retry               it has failed, and trains again
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from trainer.errors import ConfigError, DamagedError
from trainer.files import fsync_directory, read_bytes, writing
from trainer.runs.status import RunStatus, State

FILE = "search.jsonl"


@dataclass
class Stint:
    """A part of the training of a point.

    Attributes:
        until: the budget at which it pauses, in the unit of the search; None: at the end.
        outcome: None as long as it is trained, also if its command was killed.
    """

    until: float | None
    outcome: RunStatus | None = None


@dataclass
class Trial:
    """A point of a search, and what has become of it.

    Attributes:
        values: key -> value as on a command line.
        state: what the search has recorded with its start; JSON.
        evaluations: metrics by step, in the order of the reports.
    """

    number: int
    values: Mapping[str, str]
    state: Any = None
    stints: list[Stint] = field(default_factory=list)
    evaluations: dict[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def outcome(self) -> RunStatus | None:
        """The outcome of the newest part of its training; None: it trains."""
        return self.stints[-1].outcome

    @property
    def step(self) -> int:
        """The last step of which is known that it was trained."""
        ends = [stint.outcome.step for stint in self.stints if stint.outcome]
        return max([*ends, *self.evaluations], default=0)

    def at(self, until: float | None) -> Stint | None:
        """Return the part of its training with this budget, if it was started."""
        return next((stint for stint in self.stints if stint.until == until), None)


@dataclass(frozen=True)
class Proposal:
    """What a search wants trained next: a new point, or one that has paused.

    Attributes:
        until: see `Stint`.
        state: what the search wants to find again in `Trial.state`; JSON.
    """

    number: int
    values: Mapping[str, str]
    until: float | None = None
    state: Any = None


class Study:
    """The points of a search.

    Attributes:
        trials: by number, in the order of their starts.
        events: all of them, in order.
    """

    def __init__(self) -> None:
        self.trials: dict[int, Trial] = {}
        self.events: list[Mapping[str, Any]] = []
        self._log: BinaryIO | None = None
        self._path = Path()

    @property
    def running(self) -> list[Trial]:
        """The points that train, or that a killed command has trained."""
        return [trial for trial in self.trials.values() if trial.outcome is None]

    @property
    def steps(self) -> int:
        """The steps of all points."""
        return sum(trial.step for trial in self.trials.values())

    def start(self, proposal: Proposal) -> None:
        """Record that the search has decided to train a point."""
        event = {"number": proposal.number, "until": proposal.until}
        if proposal.number in self.trials:
            self._record({"event": "continue", **event})
        else:
            new = {"values": dict(proposal.values), "state": proposal.state}
            self._record({"event": "start", **event, **new})

    def report(self, number: int, step: int, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation; return False if it is known, or came after the end."""
        trial = self.trials[number]
        if trial.outcome is not None or step in trial.evaluations:
            return False
        self._record({"event": "report", "number": number, "step": step, "metrics": dict(metrics)})
        return True

    def end(self, number: int, outcome: RunStatus) -> None:
        """Record the outcome of what a point has trained, unless it has one."""
        if self.trials[number].outcome is None:
            self._record({"event": "end", "number": number, "outcome": asdict(outcome)})

    def retry_failed(self) -> None:
        """Record that all points that have failed are trained again."""
        for trial in self.trials.values():
            if trial.outcome is not None and trial.outcome.state is State.FAILED:
                self._record({"event": "retry", "number": trial.number})

    def open(self, folder: Path, definition: Mapping[str, Any]) -> None:
        """Read the log, and record in it from now on.

        Raises:
            ConfigError: it is that of another search, or damaged.
            StorageError: it cannot be written.
        """
        self._path = folder / FILE
        lines, size = _read(self._path)
        recorded = lines[0]["search"] if lines else definition
        if recorded != definition:
            if len(lines) > 1:
                raise ConfigError(*_differences(self._path, recorded, definition))
            lines, size = [], 0
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._log = open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")  # noqa: SIM115
            self._log.truncate(size)  # without a line that a kill has cut off
            self._log.seek(size)
            if not lines:
                self._write({"search": dict(definition)})
                fsync_directory(folder)
        for event in lines[1:]:
            self.apply(event)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _record(self, event: Mapping[str, Any]) -> None:
        if self._log is not None:
            with writing(self._path):
                self._write(event)
        self.apply(event)

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._log is not None
        self._log.write(json.dumps(line).encode() + b"\n")
        self._log.flush()
        os.fsync(self._log.fileno())

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take an event that is in the log."""
        number = event["number"]
        match event["event"]:
            case "start":
                trial = Trial(number, event["values"], event["state"])
                self.trials[number] = trial
                trial.stints.append(Stint(event["until"]))
            case "continue":
                self.trials[number].stints.append(Stint(event["until"]))
            case "report":
                self.trials[number].evaluations[event["step"]] = event["metrics"]
            case "end":
                outcome = dict(event["outcome"])
                outcome["state"] = State(outcome["state"])
                self.trials[number].stints[-1].outcome = RunStatus(**outcome)
            case "retry":
                self.trials[number].stints[-1].outcome = None
        self.events.append(event)


def read_study(folder: Path) -> tuple[Study, Mapping[str, Any]] | None:
    """Return the study of a sweep's folder and its definition, or None if it has no log.

    Raises:
        DamagedError: the log cannot be read.
    """
    lines, _ = _read(folder / FILE)
    if not lines:
        return None
    study = Study()
    try:
        for event in lines[1:]:
            study.apply(event)
        return study, lines[0]["search"]
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(folder / FILE, f"an event is incomplete: {error!r}") from error


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a log, and the size of its complete lines in bytes."""
    try:
        content = read_bytes(path, sys.maxsize)
    except FileNotFoundError:
        return [], 0
    size = content.rfind(b"\n") + 1
    lines = []
    for number, line in enumerate(content[:size].splitlines(), 1):
        try:
            lines.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            fix = "remove the file to search again, or start another search with sweep.name=<name>"
            raise DamagedError(path, f"line {number} is damaged", fix) from error
    return lines, size


def _differences(path: Path, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changes = "; ".join(
        f"{key}: {recorded.get(key, 'none')} -> {now.get(key, 'none')}"
        for key in {**recorded, **now}
        if recorded.get(key) != now.get(key)
    )
    return [
        f"{path} holds a search that differs in {changes}",
        "continue with the command as it was, or start another search with sweep.name=<name>",
    ]
