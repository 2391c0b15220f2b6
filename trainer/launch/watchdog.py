"""The watchdog: finds the process that hangs, by its last sign of life and its stacks.

Processes that run every step together stop together, so the first that is silent for too long need
not be the one that hangs. That is the one that is stopped, or whose stacks do not show it waiting
for the others, or that is furthest behind.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.cluster.messages import Phase, Progress
from trainer.cluster.signals import STACKS
from trainer.cluster.spec import ProcessId
from trainer.config.schema import Watchdog
from trainer.launch.ray_engine import ManagedProcess

_BEFORE = "import"  # the phase of a process before its first message
_BEFORE_STEPS = (_BEFORE, "start", "compile")
_ALLOWED = {
    **dict.fromkeys(_BEFORE_STEPS, "compile_secs"),
    "evaluate": "evaluate_secs",
    "save": "save_secs",
}
_UNWATCHED = "join"  # strategy.start_timeout_secs bounds it
_DUMP_SECS = 5.0  # how long stacks may take to be written
_POLL_SECS = 0.02  # between two looks whether they are
_WAITING_FILES = (
    "trainer/engine/process_group.py",
    "trainer/engine/graph/exchange/peer_links.py",
    "trainer/engine/graph/exchange/shared_rows.py",
)
"""Files of this package in which a process waits for others."""

_WAITING = re.compile("|".join(rf'/{re.escape(file)}"' for file in _WAITING_FILES))


@dataclass(frozen=True)
class Heartbeat:
    """The last sign of life of a process.

    Attributes:
        phase: its phase; `import` before its first message.
        at: when it came, in seconds, monotonic.
    """

    phase: str
    step: int
    at: float


@dataclass(frozen=True)
class ProcessSnapshot:
    """The state of a process at the time of an alarm."""

    heartbeat: Heartbeat
    is_stopped: bool
    stacks: str

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the others."""
        return _WAITING.search(self.stacks) is not None


class Watch:
    """The last signs of life of the processes of one attempt. It has no clock."""

    def __init__(self, allowed: Watchdog) -> None:
        self._allowed = allowed
        self._heartbeats: dict[ProcessId, Heartbeat] = {}

    def begin(self, process_id: ProcessId, now: float) -> None:
        """Watch a process that was started just now."""
        self._heartbeats[process_id] = Heartbeat(_BEFORE, 0, now)

    def end(self, process_id: ProcessId) -> None:
        self._heartbeats.pop(process_id, None)

    def update(self, process_id: ProcessId, message: Phase | Progress, now: float) -> None:
        """Take a sign of progress; no other message is one."""
        if heartbeat := self._heartbeats.get(process_id):
            phase = message.phase if isinstance(message, Phase) else heartbeat.phase
            self._heartbeats[process_id] = Heartbeat(phase, message.step, now)

    def has_begun(self, process_id: ProcessId) -> bool:
        """Return whether a process has joined the others, so that it may have trained."""
        heartbeat = self._heartbeats.get(process_id)
        return heartbeat is not None and heartbeat.phase not in (_BEFORE, _UNWATCHED)

    def renew(self, now: float) -> None:
        """Take the present as the last sign of life of all processes."""
        for process_id, heartbeat in self._heartbeats.items():
            self._heartbeats[process_id] = replace(heartbeat, at=now)

    def alarm(self) -> float:
        """Return when the first process will have been silent for too long; infinity: none is."""
        return min(
            (
                heartbeat.at + getattr(self._allowed, _allowance(heartbeat))
                for heartbeat in self._heartbeats.values()
                if heartbeat.phase != _UNWATCHED
            ),
            default=float("inf"),
        )

    def report(
        self,
        stopped: Collection[ProcessId],
        stacks: Mapping[ProcessId, str],
        logs: Mapping[ProcessId, Path],
        now: float,
    ) -> tuple[ProcessId, list[str]]:
        """Return the process that hangs, after an alarm, and the lines for the user."""
        snapshots = {
            process_id: ProcessSnapshot(
                heartbeat, process_id in stopped, stacks.get(process_id, "")
            )
            for process_id, heartbeat in self._heartbeats.items()
        }
        hung = find_hung(snapshots, now)
        return hung, list(_report_lines(hung, snapshots, logs, now))


def _report_lines(
    hung: ProcessId,
    snapshots: Mapping[ProcessId, ProcessSnapshot],
    logs: Mapping[ProcessId, Path],
    now: float,
) -> Iterator[str]:
    snapshot = snapshots[hung]
    key = f"watchdog.{_allowance(snapshot.heartbeat)}"
    position = _position(snapshot.heartbeat, now)
    yield f"warning: {hung} makes no progress: {position} ({key}{_state(snapshot)})"
    for process_id, other in snapshots.items():
        if process_id != hung:
            yield f"  {process_id}: {_position(other.heartbeat, now)}{_state(other)}"
    yield from (f"  {line}" for line in snapshot.stacks.splitlines())
    yield f"  all stacks: {', '.join(str(logs[process_id]) for process_id in snapshots)}"


def find_hung(snapshots: Mapping[ProcessId, ProcessSnapshot], now: float) -> ProcessId:
    """Return the process that hangs.

    It is among those that have been silent for about as long as the first of them: processes that
    run every step together stop together.
    """
    watched = {}
    for process_id, snapshot in snapshots.items():
        if snapshot.is_stopped:
            return process_id
        if snapshot.heartbeat.phase != _UNWATCHED:
            watched[process_id] = snapshot
    first = min(snapshot.heartbeat.at for snapshot in watched.values())

    def order(process_id: ProcessId) -> tuple[bool, bool, int, float]:
        snapshot = watched[process_id]
        heartbeat = snapshot.heartbeat
        is_well = now - heartbeat.at < (now - first) / 2
        return is_well, snapshot.is_waiting, heartbeat.step, heartbeat.at

    return min(watched, key=order)


def examine(
    processes: Mapping[ProcessId, ManagedProcess], logs: Mapping[ProcessId, Path]
) -> tuple[list[ProcessId], dict[ProcessId, str]]:
    """Return the processes that are stopped, and what the others write about their stacks."""
    stopped = [process_id for process_id, process in processes.items() if process.is_stopped()]
    running = {name: process for name, process in processes.items() if name not in stopped}
    return stopped, _stacks(running, logs)


def _stacks(
    processes: Mapping[ProcessId, ManagedProcess], logs: Mapping[ProcessId, Path]
) -> dict[ProcessId, str]:
    """Have processes write their stacks to their logs; return them."""
    dumps = dict.fromkeys(processes, b"")
    with ExitStack() as stack:
        files = {
            process_id: stack.enter_context(logs[process_id].open("rb")) for process_id in processes
        }
        for file in files.values():
            file.seek(0, os.SEEK_END)
        for process in processes.values():
            process.signal(STACKS)
        end = time.monotonic() + _DUMP_SECS
        while time.monotonic() < end:
            # Nothing marks the end of a dump: it is complete when there is one and does not grow.
            time.sleep(_POLL_SECS)
            new = {process_id: file.read() for process_id, file in files.items()}
            dumps = {process_id: dump + new[process_id] for process_id, dump in dumps.items()}
            if not any(new.values()) and all(b"Current thread 0x" in x for x in dumps.values()):
                break
    return {
        process_id: _sorted_threads(content.decode(errors="replace"))
        for process_id, content in dumps.items()
    }


def _sorted_threads(dump: str) -> str:
    """Return the stacks of a dump, that of the thread that trains first."""
    threads = re.findall(r"^(?:Current thread|Thread) 0x.*\n(?:  .*\n?)*", dump, re.MULTILINE)
    threads.sort(key=lambda thread: not thread.startswith("Current"))
    return "".join(threads).rstrip()


def _allowance(heartbeat: Heartbeat) -> str:
    return _ALLOWED.get(heartbeat.phase, "stall_secs")


def _position(heartbeat: Heartbeat, now: float) -> str:
    return f"{heartbeat.phase} at step {heartbeat.step}, for {now - heartbeat.at:.0f} s"


def _state(snapshot: ProcessSnapshot) -> str:
    if snapshot.is_stopped:
        return "; it is stopped by a signal, and cannot show its stacks"
    return "; it waits for others" if snapshot.is_waiting else ""
