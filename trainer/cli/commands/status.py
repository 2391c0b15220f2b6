"""The command `status [run]`: what each process of a run does, on whichever host. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from trainer.cli.arguments import Parser
from trainer.cli.commands.command_arguments import run_at
from trainer.cli.commands.runs import age
from trainer.cli.terminal import Terminal
from trainer.errors import DONE
from trainer.runs import process_status
from trainer.runs.process_status import HostStatus
from trainer.runs.run_summary import summarize
from trainer.runs.status import State
from trainer.text import format_duration

_HEAD = ("process", "host", "phase", "step", "age")
_NOT_STARTED = ("-", "not started", "-", "-")


def run(arguments: Sequence[str]) -> int:
    """Print the processes of a run and the state of the run as a whole."""
    parser = Parser(
        "status",
        "It reads the run directory, so any host that sees that will do. "
        "age: how long ago the process last made progress.",
    )
    parser.add_argument(
        "run", nargs="?", help="a run directory; the newest run of runs, unless one is named"
    )
    path = run_at("status", parser.parse_args(arguments).run)
    records = process_status.without_earlier(process_status.read(path))
    ages = {name: process_status.age_secs(path, name, time.time()) for name in records}
    living = [
        name
        for name, record in records.items()
        if record.code is None and ages[name] <= process_status.PATIENCE_SECS
    ]
    run = summarize(path)
    # A lock of another host need not be visible here.
    state = State.RUNNING if living and run.state is not State.DONE else run.state
    alive = [each for name in living for each in records[name].processes if not each.end]
    step = max([run.step, *(process.step for process in alive)])
    terminal = Terminal()
    if rows := _rows(records):
        terminal.show_table([_HEAD, *rows], "<<<>>")
    position = f"{step}/{run.total}" if run.total else str(step)
    left = "" if run.eta_secs is None else f", about {format_duration(run.eta_secs)} left"
    codes = ", ".join(map(str, sorted({record.code for record in records.values() if record.code})))
    why = f": {run.why}" if run.why else f" (exit code {codes})" if codes else ""
    terminal.show_line(f"{path}: {state}, step {position}{left}{why}")
    for name, record in records.items() if state is not State.DONE else ():
        if record.code is None and name not in living:
            terminal.show_line(
                f"{name} on {record.host} no longer reports: it was killed, is stopped, or its "
                "host is gone or cut off."
            )
    return DONE


def _rows(records: Mapping[str, HostStatus]) -> Sequence[tuple[str, ...]]:
    """Return the cells of each process, sorted by name."""
    rows = {name: _NOT_STARTED for record in records.values() for name in record.cluster}
    for record in records.values():
        for process in record.processes:
            rows[process.name] = (
                process.host or record.host,
                process.end or process.phase or "start",
                str(process.step),
                age(process.quiet_secs),
            )
    return [(name, *rows[name]) for name in sorted(rows, key=_order)]


def _order(name: str) -> tuple[str, int]:
    job, _, index = name.rpartition("-")
    return job, int(index) if index.isdecimal() else 0
