"""Requests to stop or to save: what each means, and the signals by which they come.

SIGTERM and SIGINT request a stop, SIGUSR1 and SIGUSR2 a save, SIGQUIT the stacks.
"""

from __future__ import annotations

import enum
import faulthandler
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

from trainer.cluster.messages import Leave, SignalReceived
from trainer.cluster.spec import ProcessId

STOP = frozenset({signal.SIGINT, signal.SIGTERM})
SAVE = signal.SIGUSR1
SAVES = frozenset({SAVE, signal.SIGUSR2})
"""Schedulers announce the end of a job's time by either of them."""
REQUESTS = (*sorted(STOP), *sorted(SAVES))

STACKS = signal.SIGQUIT
"""Not one that schedulers send: the watchdog's request must not look like one to save."""

SWEEP = ProcessId("sweep", 0)
"""The source of the requests that a sweep sends to its points."""

Request: TypeAlias = SignalReceived | Leave


class Decision(enum.Enum):
    """What a request means, given those that came before it."""

    SAVE = enum.auto()
    STOP = enum.auto()
    """Save, then exit."""
    LEAVE = enum.auto()
    """Exit immediately, without saving."""
    IGNORE = enum.auto()


class StopRequests:
    """The stop and save requests that reach one command, of any source.

    A source is the user (None), a process of the run, or a sweep. The first stop request of any
    source stops the run. Further ones change nothing, however many there are: when a machine, a
    container or a job is stopped, every process in it gets a signal, and Slurm sends SIGTERM twice
    within milliseconds. Only a second Ctrl-C at the keyboard exits immediately.

    Args:
        is_attended: whether a SIGINT of the user is a Ctrl-C at the keyboard.

    Attributes:
        number: the signal of the first stop request; 0: there was none.
        is_leaving: whether a request was to exit immediately.
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

        A request that is added just before the block may be without its call, so check what is
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
        return "; again exits immediately" if self._is_interrupted else ""

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


@contextmanager
def forward_to(handler: Callable[[int], None], numbers: Iterable[int] = REQUESTS) -> Iterator[None]:
    """Call `handler` with the number of each stop or save signal while the block lasts."""
    previous = {
        number: signal.signal(number, lambda received, frame: handler(received))
        for number in numbers
    }
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def survive_saves() -> None:
    """Let save requests pass while there is nothing to save: by default they end the process."""
    for number in SAVES:
        # Not SIG_IGN, which the processes that this one starts would inherit.
        signal.signal(number, lambda received, frame: None)


def stop_with(caller: int) -> None:
    """Make this process save and stop when the process of `caller`, a descriptor, ends."""

    def wait() -> None:
        os.read(caller, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="caller").start()


class Signals:
    """Receives signals in a worker, also while its main thread is inside TensorFlow.

    No handler of Python's runs there. But Python's C handler, which always runs, writes the number
    of a signal into a pipe, and a thread reads it. Blocking the signals and waiting for them in a
    thread would be simpler, but what the user's code starts would inherit the mask, and nobody
    could end it.
    """

    def __init__(self, notify: Callable[[int], None]) -> None:
        self.number = 0
        self._save = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._previous_fd = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, self._handle) for number in REQUESTS}
        faulthandler.enable(file=2)  # the stacks, if the interpreter itself crashes
        faulthandler.register(STACKS, file=2, all_threads=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACKS})
        threading.Thread(target=self._read, args=(notify,), daemon=True, name="signals").start()

    def close(self) -> None:
        """Give the signals back to those who had them, in a process that lives on."""
        faulthandler.unregister(STACKS)
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._writing)  # the thread reads the end, and leaves

    def stop(self) -> bool:
        """Return whether a stop was requested."""
        return self.number != 0

    def save(self) -> bool:
        """Return whether a save was requested since the last call."""
        if not self._save:
            return False
        self._save = False
        return True

    def request(self, number: int) -> None:
        """Take a request, from a signal or forwarded by the supervisor."""
        if number in SAVES:
            self._save = True
        else:
            self.number = self.number or number

    def unblock(self) -> None:
        """Unblock the signals in this thread alone, if `blocked` has blocked them at the start."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in STOP:
            self.request(number)  # one that the main thread sends itself counts when it continues

    def _read(self, notify: Callable[[int], None]) -> None:
        while numbers := os.read(self._reading, 64):
            for number in numbers:
                if number in REQUESTS:
                    self.request(number)
                    notify(number)
        os.close(self._reading)


@contextmanager
def blocked() -> Iterator[None]:
    """Block signals in this thread and in the processes and threads that it starts meanwhile.

    A worker that does not handle them yet must not die of them.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*REQUESTS, STACKS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def preserve_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM while TensorFlow replaces it; a signal meanwhile waits.

    All other threads must have it blocked. In a worker those have that were started before
    `unblock`.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
