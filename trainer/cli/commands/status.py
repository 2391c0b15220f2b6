"""The command `status [run]`: what each process of a run does, on whichever host. No TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trainer.cli.commands.command_arguments import Parser, run_at
from trainer.cli.commands.runs import age
from trainer.cli.terminal import Terminal
from trainer.config import addresses
from trainer.errors import DONE
from trainer.runs import process_status
from trainer.runs.process_status import HostStatus
from trainer.runs.run_summary import summarize
from trainer.runs.status import State
from trainer.store import remote_view
from trainer.store.remote_view import RemoteView
from trainer.text import format_duration

_HEAD = ("process", "host", "phase", "step", "age")
_ALIGN = "<<<>>"


_Known: TypeAlias = tuple[Mapping[str, HostStatus], Collection[str], Sequence[str]]
"""The records of the commands by the names of their own processes, which live, and notes."""


@dataclass(frozen=True)
class _Row:
    """A process as it is shown; without a host if its command has written nothing yet."""

    process: str
    host: str | None = None
    phase: str = ""
    step: int = 0
    age_secs: float | None = None
    is_alive: bool = False


def run(arguments: Sequence[str]) -> int:
    """Print the processes of a run and the state of the run as a whole."""
    parser = Parser(
        "status",
        "It reads the run directory, or what an object store has of it, so any host that sees that "
        f"will do. It waits up to {process_status.PATIENCE_SECS:g} s for the next sign of each "
        "host; of a run in a store, for as long as another command would before it took it over. "
        "age: how long ago the process last made progress.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        help="a run directory, or its address in an object store; the newest run of runs, unless "
        "one is named",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    args = parser.parse_args(arguments)
    if args.run is None or not addresses.is_remote(args.run):
        path = run_at("status", args.run)
        _show(str(path), path, _in_folder(path), args.json)
        return DONE
    address = args.run.rstrip("/")
    with remote_view.view("status", address) as view:
        holder = {"holder": view.manifest.holder if view.in_use else None}
        _show(address, view.path, _in_store(view), args.json, holder)
    return DONE


def _in_folder(path: Path) -> _Known:
    records, living = process_status.watch(path, time.monotonic, time.sleep)
    records = process_status.without_earlier(records, living)
    notes = [
        f"{name} on {record.host} no longer reports: it was killed, is stopped, or its host "
        "is gone or cut off."
        for name, record in records.items()
        if record.code is None and name not in living
    ]
    return records, living, notes


def _in_store(view: RemoteView) -> _Known:
    """Return what the store has: the records of the chief's host, as they were uploaded."""
    records = process_status.read(view.path)
    holder = view.manifest.holder if view.in_use else None
    living = {
        name
        for name, record in records.items()
        if record.code is None and holder and holder.startswith(f"{record.host}:{record.pid}:")
    }
    notes = []
    if holder:
        notes.append(
            f"In use by {holder} (host, process). What the processes of the chief's host do is "
            "uploaded with each checkpoint, and every 30 s after the first."
        )
    if view.silent_holder:
        notes.append(
            f"{view.silent_holder} (host, process) no longer reports: it was killed, is "
            "stopped, or its host is gone or cut off."
        )
    return process_status.without_earlier(records, living), living, notes


def _show(
    place: str, path: Path, contents: _Known, as_json: bool, more: Mapping[str, Any] | None = None
) -> None:
    """Print the processes and the state of a run, for people or as JSON with `more`."""
    records, living, notes = contents
    run = summarize(path)
    # A lock of another host need not be visible here.
    state = State.RUNNING if living and run.state is not State.DONE else run.state
    rows = _rows(records, living, "not uploaded" if addresses.is_remote(place) else "not started")
    step = max([run.step, *(row.step for row in rows if row.is_alive)])
    if as_json:
        content = {"run": place, "state": state, "step": step, "why": run.why, **(more or {})}
        print(json.dumps({**content, "processes": [asdict(row) for row in rows]}, indent=1))
        return
    terminal = Terminal()
    if rows:
        terminal.show_table([_HEAD, *map(_cells, rows)], _ALIGN)
    position = f"{step}/{run.total}" if run.total else str(step)
    left = "" if run.eta_secs is None else f", about {format_duration(run.eta_secs)} left"
    codes = ", ".join(map(str, sorted({record.code for record in records.values() if record.code})))
    why = f": {run.why}" if run.why else f" (exit code {codes})" if codes else ""
    terminal.show_line(f"{place}: {state}, step {position}{left}{why}")
    for note in notes if state is not State.DONE else ():
        terminal.show_line(note)


def _rows(
    records: Mapping[str, HostStatus], living: Collection[str], unknown: str
) -> Sequence[_Row]:
    """Return the processes, sorted by name; the phase of those without a record is `unknown`."""
    names = {name for record in records.values() for name in record.cluster}
    rows = {
        process.name: _Row(
            process.name,
            process.host or record.host,
            process.end or process.phase or "start",
            process.step,
            process.quiet_secs,
            name in living and not process.end,
        )
        for name, record in records.items()
        for process in record.processes
    }
    names.update(rows)
    return [rows.get(name) or _Row(name, phase=unknown) for name in sorted(names, key=_order)]


def _order(name: str) -> tuple[str, int]:
    job, _, index = name.rpartition("-")
    return job, int(index) if index.isdecimal() else 0


def _cells(row: _Row) -> tuple[str, ...]:
    if row.age_secs is None or row.host is None:
        return row.process, "-", row.phase, "-", "-"
    return row.process, row.host, row.phase, str(row.step), age(row.age_secs)
