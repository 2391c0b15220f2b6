"""The log of a run whose hosts share no folder: each has a copy, so that none is lost with a host.

The chief alone writes the log, and the store has it as it was at the last upload. The state that a
restart continues from may be newer, in the memory of another host. So every other process writes
the same lines to `log-copy.jsonl`, and a restart gives each what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from trainer.engine.process_group import ProcessGroup
from trainer.files import write_atomically
from trainer.protocols import Task
from trainer.runs.identity import run_address
from trainer.runs.recorded_metrics import read_lines
from trainer.summaries.run_introduction import writer_factory
from trainer.summaries.writers.background import Background
from trainer.summaries.writers.jsonl import JsonLines
from trainer.summaries.writers.writer import Writer
from trainer.worker.run import Run


class LogCopy(JsonLines):
    """A copy of the log, in a process that is not the chief."""

    FILE: ClassVar[str] = "log-copy.jsonl"


def writers_opener(run: Run, task: Task | None) -> Callable[[int], list[Writer]]:
    """Return what opens the writers of this process at a position; collective."""
    experiment, run_dir, channel, group = run.experiment, run.run_dir, run.channel, run.group
    is_chief = group.is_chief
    open_at = writer_factory(experiment, run_dir, task, channel, writes=is_chief)
    has_own_folder = run_address(experiment) is not None and run.cluster.is_declared
    if not has_own_folder or group.count == 1 or "jsonl" not in experiment.writers:
        return open_at

    def warn(reason: str) -> None:
        channel.line(f"warning: the copy of the log cannot be written ({reason})")

    def complete_and_open(position: int) -> list[Writer]:
        complete_log(run_dir / (JsonLines if is_chief else LogCopy).FILE, position, group)
        if is_chief:
            return open_at(position)
        return [Background(partial(LogCopy, run_dir, position), warn)]

    return complete_and_open


def complete_log(path: Path, position: int, process_group: ProcessGroup) -> None:
    """Give every process the lines of the log that it lacks; collective.

    Args:
        path: the log, or the copy of this process, which is whole up to its last line.
        position: number of updates already reported; lines of later steps do not count.
    """
    own = [line for line in read_lines(path)[0] if line["step"] <= position]
    end = max((line["step"] for line in own), default=-1)
    ends = [other for (other,) in process_group.gather(end)]
    if min(ends) == max(ends):
        return
    later = [line for line in own if line["step"] >= min(ends)]
    source = ends.index(max(ends))
    # The last upload may have been between two lines of one step.
    last = {line["split"] for line in own if line["step"] == end}
    missing = [
        line
        for line in json.loads(process_group.broadcast_text(source, json.dumps(later)))
        if line["step"] > end or (line["step"] == end and line["split"] not in last)
    ]
    if missing:
        lines = [json.dumps(line) for line in [*own, *missing]]
        write_atomically(path, "".join(f"{line}\n" for line in lines))
