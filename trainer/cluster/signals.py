"""Signals that request a stop, a save or stacks: SIGTERM and SIGINT, SIGUSR1 and 2, SIGQUIT."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from trainer.cluster.stop_requests import REQUESTS, SAVES, STOP

STACKS = signal.SIGQUIT
"""Not one that schedulers send: the watchdog's request must not look like one to save."""


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
    """Ask this process to save and stop when the one ends that `caller`, a descriptor, is of."""

    def wait() -> None:
        os.read(caller, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="caller").start()


class Signals:
    """Receives signals in a worker, also while its main thread is inside TensorFlow.

    No handler of Python's runs there. But Python's C handler, which always runs, writes the number
    of a signal into a pipe, and a thread reads it. Blocking the signals and waiting for them in a
    thread would be simpler, but whatever the user's code starts would inherit the mask, and nobody
    could end it.

    Args:
        notify: called in that thread with the number of each signal.

    Attributes:
        number: the signal that requested a stop; 0: none did.
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
            self.request(number)  # one that the main thread sends itself counts when it goes on

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
