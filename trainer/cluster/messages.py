"""The messages between a process and the one that has started it.

They go from a worker to its supervisor, from a point of a sweep to the sweep, and back. Each is a
dataclass, and one JSON object on a line of a socket. TensorFlow's own output goes to the log; what
the user should see is a message, which `trainer.launch.display` shows.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias, get_args

from trainer.text import without_classes

_log = logging.getLogger(__name__)

_BEAT_SECS = 0.25


@dataclass(frozen=True)
class Line:
    """A line for the user."""

    text: str

    @property
    def is_warning(self) -> bool:
        """Whether the user should see it, whichever process sends it."""
        return self.text.startswith("warning: ")


@dataclass(frozen=True)
class Opening:
    """A line for the user that every attempt sends, and that is shown once: what is trained."""

    text: str


@dataclass(frozen=True)
class Output:
    """A line that the user's code has printed."""

    text: str


@dataclass(frozen=True)
class Phase:
    """What the worker does now; repeated, a sign of life.

    Attributes:
        phase: join, serve, wait, connect, act, start, compile, train, evaluate or save.
    """

    phase: str
    step: int


@dataclass(frozen=True)
class Progress:
    """The position of the training, or of the prediction.

    Attributes:
        rate: examples per second; 0 while unknown.
        epoch: the epoch and how many there are, such as `3/30`; empty: it is not divided.
    """

    step: int
    total: int
    rate: float
    secs_left: float | None
    metrics: Mapping[str, float]
    epoch: str = ""


@dataclass(frozen=True)
class Evaluated:
    """The metrics of the split that selects after `step` steps, and a line for the user."""

    step: int
    metrics: Mapping[str, float]
    text: str


@dataclass(frozen=True)
class SignalReceived:
    """A process has received a stop or save signal, which may concern the others.

    To a process: handle it as if you had received it.
    """

    number: int


@dataclass(frozen=True)
class Leave:
    """To a point: exit immediately, without saving."""


@dataclass(frozen=True)
class Dismiss:
    """To a process that only serves others: leave, they need it no longer."""


@dataclass(frozen=True)
class Begin:
    """To a worker: restore the state, and take part in the run.

    Attributes:
        processes: those whose memory has a snapshot, the newest first.
    """

    processes: Sequence[str]


@dataclass(frozen=True)
class FaultNotice:
    """A fault is injected; a line for the user."""

    text: str


@dataclass(frozen=True)
class SignalRequest:
    """A fault: the supervisor is to send a signal to a process, such as `ps-0`."""

    process: str
    number: int


@dataclass(frozen=True)
class Problem:
    """The user's configuration or input is wrong: exit code 2."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Crash:
    """The process has crashed: exit code 1."""

    text: str
    cause: str
    name: str = "the worker"


@dataclass(frozen=True)
class ErrorLine:
    """An error in one line, from a point of a sweep."""

    text: str


@dataclass(frozen=True)
class Outcome:
    """How the work of the process has ended: its last message.

    A number is no proof: code of the user's can leave with any exit code.
    """

    code: int


@dataclass(frozen=True)
class Exit:
    """The process has ended; its parent adds this as the last message.

    Attributes:
        code: the code of its `Outcome`, or negative for the signal that killed it before; of a
            process that has left in any other way that of a crash.
        output: what it has printed, of a process that has no log.
    """

    code: int
    output: str = ""


Message: TypeAlias = (
    Line | Opening | Output | Phase | Progress | Evaluated | SignalReceived | Leave | Dismiss
    | Begin | FaultNotice | SignalRequest | Problem | Crash | ErrorLine | Outcome | Exit
)  # fmt: skip
Send: TypeAlias = Callable[[Message], None]

_TYPES: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """Return a message as one line of JSON."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: str) -> Message | None:
    """Return the message of a line; None: the line was cut off when its sender was killed."""
    if not line.endswith("}\n"):
        return None
    fields = json.loads(line)
    return _TYPES[fields.pop("kind")](**fields)


def evaluation_text(step: int, metrics: Mapping[str, float], split: str) -> str:
    """Return the line of the log about the metrics of a split."""
    values = [f"{name} {value:.4f}" for name, value in without_classes(metrics).items()]
    return f"step {step}: {split} {', '.join(values) or 'has nothing to evaluate'}"


class Channel:
    """The worker's end.

    Frequent messages are thinned out to four a second: a fast loop would keep the supervisor busy
    on its own core.
    """

    name = "the worker"

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self.send = send
        self._clock = clock
        self._phase = ""
        self._step = 0
        self._phase_at = float("-inf")
        self._progress_at = float("-inf")

    def line(self, text: str) -> None:
        """Show a line to the user, and keep it in the log."""
        _log.info(text)
        self.send(Line(text))

    def opening(self, text: str) -> None:
        """Show a line once, for any number of attempts, and keep it in the log."""
        _log.info(text)
        self.send(Opening(text))

    def log(self, text: str) -> None:
        """Keep a line in the log alone."""
        _log.info(text)

    def phase(self, phase: str, step: int) -> None:
        """Send what the worker does now; repeated, it is a sign of life."""
        if phase != self._phase:
            _log.info("%s at step %d", phase, step)  # with the time: what a restart has taken
        if phase != self._phase or self._clock() - self._phase_at >= _BEAT_SECS:
            self._phase_at = self._clock()
            self.send(Phase(phase, step))
        self._phase = phase
        self._step = step

    def beat(self) -> None:
        """Send a sign of life: the current phase makes progress."""
        self.phase(self._phase, self._step)

    def beat_in(self, phase: str) -> None:
        """Send a sign of life if this phase is the current one; from another thread."""
        if self._phase == phase:
            self.beat()

    def progress(
        self,
        step: int,
        total: int,
        rate: float,
        secs_left: float | None,
        metrics: Mapping[str, float],
        epoch: str = "",
    ) -> None:
        """Send the position of the training; see `Progress`."""
        self._step = step
        if self._clock() - self._progress_at < _BEAT_SECS:
            return
        self._progress_at = self._clock()
        self.send(Progress(step, total, rate, secs_left, dict(metrics), epoch))

    def evaluated(self, step: int, metrics: Mapping[str, float], split: str, text: str) -> None:
        """Send the metrics of the split that selects; keep all in the log, and show `text`."""
        _log.info(evaluation_text(step, metrics, split))
        self.send(Evaluated(step, dict(metrics), text))

    def crash(self, text: str, cause: str) -> None:
        """Report a crash: the user's traceback, and the error in one line."""
        self.send(Crash(text, cause, self.name))


def to_socket(connection: socket.socket) -> Send:
    """Return a function that sends messages to the supervisor.

    A supervisor that is gone is no error: this process is about to be ended. A child that code of
    the user's forks does not write for this process.
    """
    owner = os.getpid()
    lock = threading.Lock()  # a dataset warns in its own thread

    def send(message: Message) -> None:
        if os.getpid() != owner:
            return
        try:
            with lock:
                connection.sendall(encode(message))
        except OSError:
            _log.warning("the supervisor is gone")

    return send
