"""A thread for a writer, so that no step waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from trainer.summaries.writers.writer import Writer
from trainer.text import first_line

if TYPE_CHECKING:
    import numpy as np

_MAX_CALLS = 1000  # in the queue; a report is one call a split, and one an image or histogram
_PATIENCE_SECS = 60.0


class Background(Writer):
    """Passes every call to a writer in another thread; its errors are raised by the next call.

    If a required writer falls far behind, the caller waits: a slow writer slows the training down
    instead of filling the memory. An optional writer is abandoned then, and after its first error,
    with one warning.

    Args:
        make: opens the writer; called in the thread.
        lost: called with the reason when an optional writer is abandoned; None: it is required,
            and its errors are raised.
        patience_secs: how long to wait for an optional writer in a full queue or when it closes.
    """

    def __init__(
        self,
        make: Callable[[], Writer],
        lost: Callable[[str], None] | None = None,
        patience_secs: float = _PATIENCE_SECS,
    ) -> None:
        self._lost = lost
        self._patience = None if lost is None else patience_secs
        self._calls: queue.Queue[tuple[Callable[[Writer], None], threading.Event]] = queue.Queue(
            _MAX_CALLS
        )
        self._error: Exception | None = None
        self._closed = False
        threading.Thread(target=self._work, args=(make,), daemon=True, name="writer").start()

    def hyperparameters(self, values: Mapping[str, bool | int | float | str]) -> None:
        self._call(lambda writer: writer.hyperparameters(values))

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        self._call(lambda writer: writer.scalars(split, step, values))

    def images(self, split: str, step: int, name: str, images: np.ndarray) -> None:
        self._call(lambda writer: writer.images(split, step, name, images))

    def histogram(self, split: str, step: int, name: str, values: np.ndarray) -> None:
        self._call(lambda writer: writer.histogram(split, step, name, values))

    def texts(self, split: str, step: int, name: str, texts: Sequence[str]) -> None:
        self._call(lambda writer: writer.texts(split, step, name, texts))

    def text(self, name: str, text: str) -> None:
        self._call(lambda writer: writer.text(name, text))

    def graph(self, graph_def: bytes) -> None:
        self._call(lambda writer: writer.graph(graph_def))

    def flush(self) -> None:
        # An optional writer catches up from metrics.jsonl, so there is no need to wait for it.
        self._call(lambda writer: writer.flush(), wait=self._lost is None)

    def close(self) -> None:
        self._call(lambda writer: writer.close(), wait=True)
        self._closed = True

    def _call(self, call: Callable[[Writer], None], *, wait: bool = False) -> None:
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
            self._lost(
                "it does not keep up" if isinstance(error, queue.Full) else first_line(error)
            )

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
                    with suppress(Exception):  # the first error is the cause
                        writer.close()
            # Also after an error: a caller may be waiting.
            done.set()
