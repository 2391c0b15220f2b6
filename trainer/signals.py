"""What a worker is asked for from outside: to stop (SIGTERM, SIGINT), to save (SIGUSR1), to show where it is (SIGUSR2). No TensorFlow."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP = frozenset({signal.SIGINT, signal.SIGTERM})
SAVE = signal.SIGUSR1
STACKS = signal.SIGUSR2
_OWN = (*STOP, SAVE)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Hands requests to stop and to save to a handler for as long as the block lasts."""
    before = {number: signal.signal(number, handler) for number in _OWN}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class Signals:
    """Takes signals also while the main thread is inside TensorFlow, where no handler of Python's runs.

    Python's C handler, which always runs, writes the number of a signal into a pipe, and a thread reads it. To block signals and wait
    for them in a thread would be simpler, but what the user's code starts would inherit the mask, and nobody could end it.

    Args:
        tell: called in that thread with the number of each signal.

    Attributes:
        number: of the signal by which a stop was requested; 0: none was.
    """

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.number, self._save = 0, False
        self._reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in _OWN:
            signal.signal(number, self._handle)
        faulthandler.enable(file=2)  # what a crash of the interpreter itself leaves behind
        faulthandler.register(STACKS, file=2, all_threads=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACKS})
        threading.Thread(target=self._read, args=(tell,), daemon=True, name="signals").start()

    def stop(self) -> bool:
        """Says whether a stop was requested."""
        return self.number != 0

    def save(self) -> bool:
        """Says whether a save was requested; once for each request."""
        if not self._save:
            return False
        self._save = False
        return True

    def request(self, number: int) -> None:
        """Takes a request, of a signal or passed on by the supervisor."""
        if number == SAVE:
            self._save = True
        else:
            self.number = self.number or number

    def let_in(self) -> None:
        """Lets signals in, in this thread alone: until then they wait, in a worker that `held` has started."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OWN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in STOP:
            self.request(number)  # one that the main thread sends itself has come when it goes on

    def _read(self, tell: Callable[[int], None]) -> None:
        while True:
            for number in os.read(self._reading, 64):
                if number in _OWN:
                    self.request(number)
                    tell(number)


@contextmanager
def held() -> Iterator[None]:
    """Holds signals back in this thread and in what it starts meanwhile: a worker that does not listen yet must not die of them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_OWN, STACKS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Keeps SIGTERM for us while TensorFlow takes it over: one that comes meanwhile waits.

    All other threads that there are must have it blocked, as in a worker those have that were started before `let_in`.
    """
    before, handler = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}), signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
