"""Who makes progress: what each process said last, how long it may be silent, and where it hangs. No TensorFlow.

Processes that run every step together stop together, so the first to be silent for too long need not be the one that hangs. That
one is looked for: it is stopped, or its stacks do not show it waiting for the others, or it is the furthest behind.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cluster import Task
from trainer.process import WorkerProcess
from trainer.schema import Watchdog
from trainer.signals import STACKS

_BEFORE = "import"  # what a process does that has not said anything yet
_ALLOWED = {_BEFORE: "compile_secs", "start": "compile_secs", "compile": "compile_secs", "evaluate": "evaluate_secs", "save": "save_secs"}
_UNWATCHED = "join"  # strategy.start_timeout_secs says how long that may take
_DUMP_SECS, _LOOK_SECS = 5.0, 0.02  # how long stacks may take to be written, and between two looks
_WAITING = re.compile(r'/trainer/(peers|shared_memory)\.py"')
_OURS = re.compile(
    r'/trainer/worker\.py", line \d+ in _listen|/trainer/signals\.py", line \d+ in _read'
    # A writer that has nothing to do; one that hangs is of interest.
    r'|/queue\.py", line \d+ in get\n.*/trainer/writers/background\.py", line \d+ in _work'
)


@dataclass(frozen=True)
class Beat:
    """The last sign of life of a process.

    Attributes:
        phase: what it does; `import` until it has said anything.
        step: how many steps it had made.
        at: when that was, monotonic.
    """

    phase: str
    step: int
    at: float


@dataclass(frozen=True)
class Sight:
    """What is seen of a process when one of the group is silent for too long.

    Attributes:
        beat: its last sign of life.
        is_stopped: whether it is stopped by a signal (SIGSTOP), or by a debugger.
        stacks: of its Python threads.
    """

    beat: Beat
    is_stopped: bool
    stacks: str

    @property
    def waits(self) -> bool:
        """Whether it waits for the others."""
        return _WAITING.search(self.stacks) is not None


class Watch:
    """The clocks of the processes of one attempt.

    Args:
        allowed: how long each may be silent.
        clock: seconds, monotonic.
    """

    def __init__(self, allowed: Watchdog, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed, self._clock = allowed, clock
        self._beats: dict[Task, Beat] = {}

    def begin(self, task: Task) -> None:
        """Watches a process that was started just now."""
        self._beats[task] = Beat(_BEFORE, 0, self._clock())

    def end(self, task: Task) -> None:
        """Watches a process no more."""
        self._beats.pop(task, None)

    def heard(self, task: Task, message: Mapping[str, Any]) -> None:
        """Takes a message of the kinds `phase` and `progress`; only they are signs of progress."""
        self._beats[task] = Beat(message.get("phase", self._beats[task].phase), message["step"], self._clock())

    def has_begun(self, task: Task) -> bool:
        """Says whether a process has met the others, if there are any, so that it may have something to lose."""
        return self._beats[task].phase not in (_BEFORE, _UNWATCHED)

    def renew(self) -> None:
        """Starts all clocks anew."""
        self._beats = {task: Beat(beat.phase, beat.step, self._clock()) for task, beat in self._beats.items()}

    def alarm(self) -> tuple[float, Task] | None:
        """Gives when which process will have been silent for too long, if nothing is heard of it until then."""
        return min(((beat.at + self._secs(beat), task) for task, beat in self._watched()), key=lambda alarm: alarm[0], default=None)

    def report(self, processes: Mapping[Task, WorkerProcess], logs: Mapping[Task, Path]) -> tuple[Task, list[str]]:
        """Finds out who hangs, after an alarm.

        Args:
            processes: all that live.
            logs: their logs, which get the stacks of all.

        Returns:
            The process that hangs, and what to tell of it, line by line.
        """
        stopped = {task for task, process in processes.items() if process.is_stopped()}
        stacks = _stacks({task: process for task, process in processes.items() if task not in stopped}, logs)
        sights = {task: Sight(self._beats[task], task in stopped, stacks.get(task, "")) for task in processes}
        hung = culprit(sights, self._clock())
        return hung, list(self._words(hung, sights, logs))

    def _watched(self) -> Iterator[tuple[Task, Beat]]:
        return ((task, beat) for task, beat in self._beats.items() if beat.phase != _UNWATCHED)

    def _secs(self, beat: Beat) -> float:
        return getattr(self._allowed, _ALLOWED.get(beat.phase, "stall_secs"))

    def _words(self, hung: Task, sights: Mapping[Task, Sight], logs: Mapping[Task, Path]) -> Iterator[str]:
        now, sight = self._clock(), sights[hung]
        key = f"watchdog.{_ALLOWED.get(sight.beat.phase, 'stall_secs')}"
        yield f"warning: {hung} makes no progress: {_place(sight.beat, now)} ({key}{_state(sight)})"
        for task, other in sights.items():
            if task != hung:
                yield f"  {task}: {_place(other.beat, now)}{_state(other)}"
        yield from (f"  {line}" for line in sight.stacks.splitlines())
        yield f"  all stacks: {', '.join(str(logs[task]) for task in sights)}"


def culprit(sights: Mapping[Task, Sight], now: float) -> Task:
    """Gives the process that hangs.

    Whoever was heard of only just now is none of those in question, for they all have been silent since one of them has.
    """
    if stopped := [task for task, sight in sights.items() if sight.is_stopped]:
        return stopped[0]
    watched = {task: sight for task, sight in sights.items() if sight.beat.phase != _UNWATCHED}
    longest = max(now - sight.beat.at for sight in watched.values())
    silent = {task: sight for task, sight in watched.items() if now - sight.beat.at >= longest / 2}
    return min(silent, key=lambda task: (silent[task].waits, silent[task].beat.step, silent[task].beat.at))


def _stacks(processes: Mapping[Task, WorkerProcess], logs: Mapping[Task, Path]) -> dict[Task, str]:
    """Lets processes write their stacks into their logs, and gives them without those of our own service threads."""
    begins = {task: logs[task].stat().st_size for task in processes}
    for process in processes.values():
        process.signal(STACKS)
    found: dict[Task, bytes] = {}
    end = time.monotonic() + _DUMP_SECS
    while time.monotonic() < end:
        time.sleep(_LOOK_SECS)  # the writer says nothing when it is done: it is when there is something and no more comes
        before, found = found, {task: logs[task].read_bytes()[begins[task] :] for task in processes}
        if before == found and all(b"Current thread 0x" in content for content in found.values()):
            break
    return {task: _of_interest(content.decode(errors="replace")) for task, content in found.items()}


def _of_interest(dump: str) -> str:
    threads = re.findall(r"^(?:Current thread|Thread) 0x.*\n(?:  .*\n?)*", dump, re.MULTILINE)
    # The one that trains first.
    threads.sort(key=lambda thread: not thread.startswith("Current"))
    return "".join(thread for thread in threads if not _OURS.search(thread)).rstrip()


def _place(beat: Beat, now: float) -> str:
    return f"{beat.phase} at step {beat.step}, for {now - beat.at:.0f} s"


def _state(sight: Sight) -> str:
    if sight.is_stopped:
        return "; it is stopped by a signal, and cannot show its stacks"
    return "; it waits for others" if sight.waits else ""
