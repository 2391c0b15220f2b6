"""A thread of its own for a writer: a step never waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from trainer.writers.base import Writer

if TYPE_CHECKING:
    import numpy as np

_ROOM = 1000  # calls that may wait; a report is one for each split, and one for each image and histogram
_PATIENCE_SECS = 60.0


class Background(Writer):
    """Hands every call on to a writer in another thread. What fails there comes out at whatever is called next.

    A writer that the run needs is waited for when it falls far behind: what is too slow holds the training up and not the memory.
    One that the run can do without is left out from then on, and from its first error on; that is told once.

    Args:
        make: opens the writer; called in the thread.
        lost: told why the run goes on without the writer; None: the run needs it, and its errors are raised.
        patience_secs: how long a writer that the run can do without is waited for when it is closed.
    """

    def __init__(
        self, make: Callable[[], Writer], lost: Callable[[str], None] | None = None, patience_secs: float = _PATIENCE_SECS
    ) -> None:
        self._lost, self._patience = lost, None if lost is None else patience_secs
        self._calls: queue.Queue[tuple[Callable[[Writer], None], threading.Event]] = queue.Queue(_ROOM)
        self._error: Exception | None = None
        self._closed = False
        threading.Thread(target=self._work, args=(make,), daemon=True, name="writer").start()

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        self._tell(lambda writer: writer.scalars(split, step, values))

    def images(self, split: str, step: int, name: str, images: np.ndarray) -> None:
        self._tell(lambda writer: writer.images(split, step, name, images))

    def histogram(self, split: str, step: int, name: str, values: np.ndarray) -> None:
        self._tell(lambda writer: writer.histogram(split, step, name, values))

    def text(self, name: str, text: str) -> None:
        self._tell(lambda writer: writer.text(name, text))

    def graph(self, graph_def: bytes) -> None:
        self._tell(lambda writer: writer.graph(graph_def))

    def flush(self) -> None:
        # What the run can do without catches up from metrics.jsonl, and nobody need wait for it here.
        self._tell(lambda writer: writer.flush(), wait=self._lost is None)

    def close(self) -> None:
        self._tell(lambda writer: writer.close(), wait=True)
        self._closed = True

    def _tell(self, call: Callable[[Writer], None], *, wait: bool = False) -> None:
        if self._closed:
            return
        done = threading.Event()
        try:
            self._calls.put((call, done), block=wait or self._lost is None, timeout=self._patience)
            if wait and not done.wait(self._patience):
                raise TimeoutError(f"no answer for {self._patience:g} s")
            if self._error is not None:
                raise self._error
        except Exception as error:
            if self._lost is None:
                raise
            self._closed = True
            self._lost("it does not keep up" if isinstance(error, queue.Full) else str(error).strip().split("\n")[0])

    def _work(self, make: Callable[[], Writer]) -> None:
        writer: Writer | None = None
        try:
            writer = make()
        except Exception as error:
            self._error = error
        while True:
            call, done = self._calls.get()
            if writer is not None and self._error is None:
                try:
                    call(writer)
                except Exception as error:
                    self._error = error
                    with suppress(Exception):  # the first error tells the cause
                        writer.close()
            # Also after an error: who waits must hear of it.
            done.set()
