"""The command `status <run>`: what each process of a run does, on whichever host. No TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.cli.commands.command_arguments import Parser, run_at
from trainer.cli.commands.runs import age
from trainer.config import addresses
from trainer.errors import DONE, ConfigError
from trainer.runs import process_status, provenance
from trainer.runs.process_status import HostStatus
from trainer.runs.status import RunStatus, State, run_status
from trainer.store import remote_view
from trainer.store.remote_view import RemoteView
from trainer.text import align_columns, printable

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
        "It reads the run directory, or what an object store has of it, so any host that sees that "
        f"will do. It waits up to {process_status.PATIENCE_SECS:g} s for the next sign of each "
        "host; of a run in a store, for as long as another command would before it took it over. "
        "age: how long ago the process last made progress.",
    )
    parser.add_argument("run", help="a run directory, or its address in an object store")
    parser.add_argument("--json", action="store_true", help="for programs")
    args = parser.parse_args(arguments)
    if not addresses.is_remote(args.run):
        _show(_in_folder(run_at("status", args.run)), args.json)
        return DONE
    address = args.run.rstrip("/")
    with remote_view.view("status", address) as view:
        _show(_in_store(address, view), args.json)
    return DONE


@dataclass(frozen=True)
class _Found:
    """What is known of the processes of a run.

    Attributes:
        place: its directory, or its address in a store.
        path: its directory, or a folder with its records.
        records: those of the commands, by the names of their own processes.
        living: the names of those that live.
        notes: lines for people.
        unknown: the phase of a process without a record.
        holder: who uses a run in a store; None: nobody, or the run is in a folder.
    """

    place: str
    path: Path
    records: Mapping[str, HostStatus]
    living: Collection[str]
    notes: Sequence[str]
    unknown: str = "not started"
    holder: str | None = None


def _in_folder(path: Path) -> _Found:
    records, living = process_status.watch(path, time.monotonic, time.sleep)
    records = process_status.without_earlier(records, living)
    notes = [
        f"{name} on {record.host} tells nothing any more: it was killed, is stopped, or its host "
        "is gone or cut off."
        for name, record in records.items()
        if record.code is None and name not in living
    ]
    return _Found(str(path), path, records, living, notes)


def _in_store(address: str, view: RemoteView) -> _Found:
    """Return what the store knows: the records of the chief's host, as they were uploaded."""
    records = process_status.read(view.path)
    holder = view.manifest.holder if view.in_use else None
    living = {
        name
        for name, record in records.items()
        if record.code is None and holder and holder.startswith(f"{record.host}:{record.pid}:")
    }
    records = process_status.without_earlier(records, living)
    notes = []
    if holder:
        notes.append(
            f"In use by {holder} (host, process). What the processes of the chief's host do is "
            "uploaded with each checkpoint, and every 30 s after the first."
        )
    if view.silent_holder:
        notes.append(
            f"{view.silent_holder} (host, process) tells nothing any more: it was killed, is "
            "stopped, or its host is gone or cut off."
        )
    return _Found(address, view.path, records, living, notes, "not uploaded", holder)


def _show(found: _Found, as_json: bool) -> None:
    status = run_status(found.path)
    state = _state(status, found.living)
    rows = list(_rows(found))
    step = max([status.step, *(row.step for row in rows if row.is_alive)])
    if as_json:
        content: dict[str, Any] = {
            "run": found.place,
            "state": state,
            "step": step,
            "why": status.error,
        }
        if addresses.is_remote(found.place):
            content["holder"] = found.holder
        print(json.dumps({**content, "processes": [asdict(row) for row in rows]}, indent=1))
        return
    if rows:
        print(*align_columns([_HEAD, *map(_cells, rows)], _ALIGN), sep="\n")
    position = _position(found.path, step)
    print(printable(f"{found.place}: {state}, step {position}{_why(status, found.records)}"))
    if state is not State.DONE:
        print("".join(f"{printable(note)}\n" for note in found.notes), end="")


def _state(status: RunStatus, living: Collection[str]) -> State:
    """Return the state of a run: a lock of another host need not be visible here."""
    return State.RUNNING if living and status.state is not State.DONE else status.state


def _rows(found: _Found) -> Iterator[_Row]:
    """Yield the processes, sorted by name, those without a record included."""
    names = {name for record in found.records.values() for name in record.cluster}
    rows = {
        process.name: _Row(
            process.name,
            process.host or record.host,
            process.end or process.phase or "start",
            process.step,
            process.quiet_secs,
            name in found.living and not process.end,
        )
        for name, record in found.records.items()
        for process in record.processes
    }
    for name in sorted({*names, *rows}, key=_order):
        yield rows.get(name) or _Row(name, phase=found.unknown)


def _order(name: str) -> tuple[str, int]:
    job, _, index = name.rpartition("-")
    return job, int(index) if index.isdecimal() else 0


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
