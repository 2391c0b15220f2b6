"""Opens the writers of a configuration, each in its own thread, so that no step waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from trainer.cluster.messages import Channel
from trainer.config.instantiate import instantiate
from trainer.config.options import signatures, targets
from trainer.summaries.writers.jsonl import JsonLines
from trainer.summaries.writers.writer import Writer
from trainer.text import first_line

_MAX_CALLS = 1000  # in the queue; a report is one call a split, and one an image or histogram
_PATIENCE_SECS = 60.0


def _forwarded(name: str) -> Any:
    """Return a method that calls the writer's method of this name, in its thread."""

    def method(self: Background, *args: Any) -> None:
        self._call(lambda writer: getattr(writer, name)(*args))

    return method


class Background(Writer):
    """Passes every call to a writer in another thread; its errors are raised by the next call.

    If a required writer falls far behind, the caller waits: a slow writer slows the training down
    instead of filling the memory. An optional writer is abandoned then, and after its first error,
    with one warning.

    Args:
        lost: called with the reason when an optional writer is abandoned; None: it is required,
            and its errors are raised.
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

    hyperparameters = _forwarded("hyperparameters")
    scalars = _forwarded("scalars")
    images = _forwarded("images")
    histogram = _forwarded("histogram")
    texts = _forwarded("texts")
    text = _forwarded("text")
    graph = _forwarded("graph")

    def settle(self) -> None:
        self._call(lambda writer: writer.settle(), wait=self._lost is None)

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


def open_writers(
    nodes: Mapping[str, Any],
    run_dir: Path,
    position: int,
    channel: Channel,
    *,
    sidecar: bool = False,
) -> list[Writer]:
    """Open writers, each in a thread; `channel` is warned when the run continues without one."""
    if sidecar:
        nodes = dict(_of_sidecar(nodes))
    opened: list[Writer] = []
    trackers = [name for name, node in nodes.items() if node.get("tracker")]
    if trackers and "jsonl" not in nodes:
        # Trackers catch up from metrics.jsonl.
        opened.append(Background(partial(JsonLines, run_dir, position)))
    for name, node in nodes.items():
        # Trackers are slow to import: that happens in the thread too. Sources are parsed (and kept)
        # here: before Python 3.11.8 `ast.parse` fails in two threads together, and the main one
        # traces the step meanwhile (CPython issue 106905).
        targets.node_groups(node["_target_"])
        make: Callable[[], Writer] = partial(
            instantiate, node, f"writers.{name}", run_dir, position, leave_out=("tracker",)
        )
        lost = partial(_warn, channel, name) if name in trackers else None
        opened.append(Background(make, lost))
    return opened


def _of_sidecar(nodes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the nodes of the writers that the sidecar evaluator opens."""
    for name, node in nodes.items():
        target = signatures.constant(node["_target_"], "sidecar", node["_target_"])
        if target is not None:
            yield name, node if target is ... else {**node, "_target_": target}


def _warn(channel: Channel, name: str, reason: str) -> None:
    channel.line(f"warning: {name} cannot be written to ({reason}); the run continues without it")
