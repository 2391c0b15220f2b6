"""Groups of processes for tests: threads of this process that exchange values."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_SECS = 60


class _Rendezvous:
    def __init__(self, count):
        self.barrier = threading.Barrier(count, timeout=_SECS)
        self.values = [None] * count


class ThreadGroup:
    """What `ProcessGroup` offers, between threads; the first is the chief.

    Attributes:
        sent: number of bytes that were broadcast.
    """

    def __init__(self, index, count, rendezvous):
        self.index, self.count = index, count
        self.is_chief = index == 0
        self.sent = 0
        self._rendezvous = rendezvous

    def gather(self, *values):
        return [list(each) for each in self._exchange(values)]

    def any_process(self, flag):
        return any(self._exchange(flag))

    def broadcast_text(self, source, text):
        return str(self._exchange(text)[source])

    def broadcast_bytes(self, source, content):
        received = np.array(self._exchange(content)[source], np.uint8)
        self.sent += received.size
        return received

    def _exchange(self, value):
        self._rendezvous.values[self.index] = value
        self._rendezvous.barrier.wait()
        values = list(self._rendezvous.values)
        self._rendezvous.barrier.wait()
        return values


def in_processes(count, call):
    """Call a function in each of so many processes at once; return the results in their order."""
    rendezvous = _Rendezvous(count)
    groups = [ThreadGroup(index, count, rendezvous) for index in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, groups))
