"""What a stop or save request means, given those before it; no signal handlers, no clock."""

from __future__ import annotations

import enum
import queue
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from trainer.cluster.messages import Leave, SignalReceived
from trainer.cluster.spec import ProcessId

STOP = frozenset({signal.SIGINT, signal.SIGTERM})
SAVE = signal.SIGUSR1
SAVES = frozenset({SAVE, signal.SIGUSR2})
"""Schedulers announce the end of a job's time by either of them."""
REQUESTS = (*sorted(STOP), *sorted(SAVES))

SWEEP = ProcessId("sweep", 0)
"""The source of the requests that a sweep sends to its points."""

Request: TypeAlias = SignalReceived | Leave


class Decision(enum.Enum):
    """What a request means, given those that came before it."""

    SAVE = enum.auto()
    STOP = enum.auto()
    """Save, then leave."""
    LEAVE = enum.auto()
    """Leave at once, without saving."""
    IGNORE = enum.auto()


class StopRequests:
    """The stop and save requests that reach one command, whatever their source.

    A source is the user (None), a process of the run, or a sweep. The first stop request of any
    source stops the run. Further ones change nothing, however many there are: when a machine, a
    container or a job is stopped, every process in it gets a signal, and Slurm sends SIGTERM twice
    within milliseconds. Only a person who types Ctrl-C a second time leaves at once.

    Args:
        is_attended: whether a SIGINT of the user is a key that a person has typed.

    Attributes:
        number: the signal of the first stop request; 0: there was none.
        is_leaving: whether a request was to leave at once.
    """

    def __init__(self, *, is_attended: bool = False) -> None:
        self.number = 0
        self.is_leaving = False
        self._is_attended = is_attended
        self._is_interrupted = False
        self._pending: queue.SimpleQueue[tuple[Request, ProcessId | None]] = queue.SimpleQueue()
        self._wake: Callable[[], None] = _do_nothing

    def request(self, number: int) -> None:
        """Add the request of a signal that this process has received; see `put`."""
        self.put(SignalReceived(number))

    def put(self, request: Request, source: ProcessId | None = None) -> None:
        """Add a request; safe at any time, in a signal handler and in every thread."""
        # In this order, see `waking`. Only this kind of queue is safe in a signal handler: another
        # has a lock, which the interrupted code may hold.
        self._pending.put((request, source))
        self._wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` after each request while the block lasts.

        A request that is added just before the block may be without its call, so look at what is
        pending within the block first.
        """
        self._wake = wake
        try:
            yield
        finally:
            self._wake = _do_nothing

    def take(self) -> tuple[Request, ProcessId | None] | None:
        """Return the next pending request and its source, or None if there is none."""
        try:
            return self._pending.get_nowait()
        except queue.Empty:
            return None

    def decide(self, request: Request, source: ProcessId | None = None) -> Decision:
        """Return what a request means, and remember that it was made."""
        if isinstance(request, Leave):
            self.number = self.number or signal.SIGINT
            self.is_leaving = True
            return Decision.LEAVE
        number = request.number
        if number in SAVES:
            return Decision.SAVE
        if self._is_attended and source is None and number == signal.SIGINT:
            if self._is_interrupted:
                self.is_leaving = True
                return Decision.LEAVE
            self._is_interrupted = True
        if self.number:
            return Decision.IGNORE
        self.number = number
        return Decision.STOP

    def hint(self) -> str:
        """Return how the user can leave without saving, as the end of a line; empty: not so."""
        return "; once more leaves at once" if self._is_interrupted else ""

    def drain(self) -> int:
        """Decide all pending requests; return the signal of the first stop request, or 0."""
        while request := self.take():
            self.decide(*request)
        return self.number

    def wait(self, secs: float) -> int:
        """Return the signal of the first stop request as soon as there is one, 0 after `secs`."""
        end = time.monotonic() + secs
        while not self.number:
            try:
                self.decide(*self._pending.get(timeout=max(0.0, end - time.monotonic())))
            except queue.Empty:
                break
        return self.number


def _do_nothing() -> None:
    pass
