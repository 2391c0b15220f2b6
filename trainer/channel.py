"""What a worker tells its supervisor: one JSON object a line, over a socket of its own. No TensorFlow.

TensorFlow's own noise goes to the log; what is meant for a person goes here and is shown by `trainer.console`.

    {"kind": "line", "text": ...}                                    a line for the user
    {"kind": "phase", "phase": "join|serve|wait|start|compile|train|evaluate|save", "step": ...}
    {"kind": "progress", "step": ..., "total": ..., "rate": ..., "secs_left": ..., "metrics": {...}}
    {"kind": "evaluated", "step": ..., "metrics": {...}, "text": ...}  metrics of the test split, and a line for the user
    {"kind": "signal", "number": ...}                                it has got a signal, which may concern others
    {"kind": "fault", "text": ...}                                   a fault is rehearsed
    {"kind": "inflict", "who": "ps-0", "signal": ...}                and this process is to get this signal
    {"kind": "problem", "lines": [...]}                              wrong configuration or input: exit code 2
    {"kind": "crash", "text": ..., "cause": ...}                     the user's traceback, and its error in one line: exit code 1
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainer.tables import overall

_log = logging.getLogger(__name__)

_BEAT_SECS = 0.25

Send = Callable[[dict[str, Any]], None]


class Channel:
    """The worker's end. What comes often is thinned out, to four a second: a fast loop would keep the supervisor busy on a core of its own.

    Args:
        send: delivers one message.
        clock: seconds, monotonic.
    """

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._phase, self._step = "", 0
        self._phase_at = self._progress_at = float("-inf")

    def line(self, text: str) -> None:
        """Shows a line to the user, and keeps it in the log."""
        _log.info(text)
        self._send({"kind": "line", "text": text})

    def phase(self, phase: str, step: int) -> None:
        """Says what the worker does now; said again, it is a sign of life."""
        if phase != self._phase or self._clock() - self._phase_at >= _BEAT_SECS:
            self._phase_at = self._clock()
            self._send({"kind": "phase", "phase": phase, "step": step})
        self._phase, self._step = phase, step

    def beat(self) -> None:
        """Says that what the worker does makes progress."""
        self.phase(self._phase, self._step)

    def progress(self, step: int, total: int, rate: float, secs_left: float | None, metrics: Mapping[str, float]) -> None:
        """Says how far training is; `rate` in examples a second, `secs_left` None while unknown."""
        self._step = step
        if self._clock() - self._progress_at < _BEAT_SECS:
            return
        self._progress_at = self._clock()
        self._send({"kind": "progress", "step": step, "total": total, "rate": rate, "secs_left": secs_left, "metrics": dict(metrics)})

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tells the metrics of the test split after `step` updates."""
        text = f"step {step}: test " + ", ".join(f"{name} {value:.4f}" for name, value in overall(metrics).items())
        _log.info(text)
        self._send({"kind": "evaluated", "step": step, "metrics": dict(metrics), "text": text})

    def fault(self, text: str) -> None:
        """Says, whichever process this is, that a fault is rehearsed."""
        _log.info(text)
        self._send({"kind": "fault", "text": text})

    def inflict(self, who: str, number: int) -> None:
        """Asks for a signal to another process, for a fault."""
        self._send({"kind": "inflict", "who": who, "signal": number})

    def problem(self, lines: list[str]) -> None:
        """Reports the user's wrong configuration or input."""
        self._send({"kind": "problem", "lines": lines})

    def crash(self, text: str, cause: str) -> None:
        """Reports a crash with a short traceback, and with the error in one line."""
        self._send({"kind": "crash", "text": text, "cause": cause})


class Warnings(logging.Handler):
    """Shows the warnings of this package, its models and its datasets to the user; they are in the log besides."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one warning; not this module's own, which is about sending."""
        if record.name != __name__:
            self._send({"kind": "line", "text": f"warning: {record.getMessage()}"})


def to_socket(connection: socket.socket) -> Send:
    """Sends messages to the supervisor. One that is gone is no error: the worker is about to be told so otherwise."""
    lock = threading.Lock()  # a dataset warns from a thread of its own

    def send(message: dict[str, Any]) -> None:
        try:
            with lock:
                connection.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            _log.warning("the supervisor is gone")

    return send
