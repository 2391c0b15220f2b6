"""The command `status <run>`: what each process of a run does, on whichever host. No TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.cli.commands.arguments import Parser, run_at
from trainer.cli.commands.runs import age
from trainer.errors import DONE, ConfigError
from trainer.runs import process_status, provenance
from trainer.runs.process_status import HostStatus
from trainer.runs.status import RunStatus, State, run_status
from trainer.text import align_columns

_HEAD = ("process", "host", "phase", "step", "age")
_ALIGN = "<<<>>"


@dataclass(frozen=True)
class _Row:
    """A process as it is shown.

    Attributes:
        process: its name.
        host: its host; None: its command has written nothing yet.
        phase: what it does; of a process that has ended, how.
        step: number of steps made.
        age_secs: seconds since its last sign of life, as its host has measured it.
        is_alive: whether its command lives.
    """

    process: str
    host: str | None = None
    phase: str = "not started"
    step: int = 0
    age_secs: float | None = None
    is_alive: bool = False


def run(arguments: Sequence[str]) -> int:
    """Print the processes of a run and the state of the run as a whole.

    Raises:
        ConfigError: there is no such run.
    """
    parser = Parser(
        "status",
        "It reads the run directory alone, so any host that sees it will do, and waits up to "
        f"{process_status.PATIENCE_SECS:g} s for the next sign of each host. age: how long ago the "
        "process last made progress.",
    )
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--json", action="store_true", help="for programs")
    args = parser.parse_args(arguments)
    path = run_at("status", args.run)
    records, living = process_status.watch(path, time.monotonic, time.sleep)
    records = process_status.without_earlier(records, living)
    status = run_status(path)
    state = _state(status, records, living)
    rows = list(_rows(records, living))
    step = max([status.step, *(row.step for row in rows if row.is_alive)])
    if args.json:
        content = {"run": str(path), "state": state, "step": step, "why": status.error}
        print(json.dumps({**content, "processes": [asdict(row) for row in rows]}, indent=1))
        return DONE
    if rows:
        print(*align_columns([_HEAD, *map(_cells, rows)], _ALIGN), sep="\n")
    print(f"{path}: {state}, step {_position(path, step)}{_why(status, records)}")
    for name, record in records.items():
        if record.code is None and name not in living and state is not State.DONE:
            print(
                f"{name} on {record.host} tells nothing any more: it was killed, is stopped, or "
                "its host is gone or cut off."
            )
    return DONE


def _state(status: RunStatus, records: Mapping[str, HostStatus], living: Collection[str]) -> State:
    """Return the state of a run: a lock of another host need not be visible here."""
    return State.RUNNING if living and status.state is not State.DONE else status.state


def _rows(records: Mapping[str, HostStatus], living: Collection[str]) -> Iterator[_Row]:
    """Yield the processes, sorted by name, those without a record included."""
    names = {name for record in records.values() for name in record.cluster}
    rows = {
        process.name: _Row(
            process.name,
            record.host,
            process.end or process.phase or "start",
            process.step,
            process.quiet_secs,
            name in living and not process.end,
        )
        for name, record in records.items()
        for process in record.processes
    }
    for name in sorted({*names, *rows}, key=_order):
        yield rows.get(name) or _Row(name)


def _order(name: str) -> tuple[str, int]:
    job, _, index = name.rpartition("-")
    return job, int(index)


def _cells(row: _Row) -> tuple[str, ...]:
    if row.age_secs is None or row.host is None:
        return row.process, "-", row.phase, "-", "-"
    return row.process, row.host, row.phase, str(row.step), age(row.age_secs)


def _position(path: Path, step: int) -> str:
    try:
        total = provenance.read(path).get("total_steps")
    except ConfigError:  # run.json is damaged; the rest is still shown
        total = None
    return f"{step}/{total}" if total else str(step)


def _why(status: RunStatus, records: Mapping[str, HostStatus]) -> str:
    """Return how a run ended that does not go on."""
    if status.error:
        return f": {status.error}"
    codes = sorted({record.code for record in records.values() if record.code})
    return f" (exit code {', '.join(map(str, codes))})" if codes else ""
