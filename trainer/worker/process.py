"""One worker process: `python -m trainer.worker.process --socket <descriptor>`.

Started by `trainer.launch.processes`, or forked by `trainer.worker.forking`. It
imports TensorFlow, receives its assignment over the socket, builds the engine, and trains. It never
outlives its supervisor: when the socket closes, also because the supervisor was killed, it is ended
at once, by `trainer/worker/parent_watch.py` or by the fork server.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import queue
import re
import signal
import socket
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainer.cluster import environment, messages
from trainer.cluster.messages import Channel, Outcome, Problem, Send, SignalReceived, to_socket
from trainer.cluster.signals import Signals
from trainer.cluster.spec import Cluster
from trainer.config import loading
from trainer.errors import CRASHED, DONE, RESTARTABLE, WRONG_INPUT, ConfigError
from trainer.runs.process_status import process_start_time
from trainer.runs.state_memory import MemoryFiles, StateMemory
from trainer.worker import parent_watch
from trainer.worker.error_summary import SELF_EXPLANATORY, error_cause, user_traceback

if TYPE_CHECKING:
    from trainer.worker.training import TrainingRun

_MAX_DESCRIPTORS = 253  # in one message on Linux

_KERNEL_ERROR = "Operation received an exception"
"""The message of oneDNN without such a kernel; TensorFlow gives it the type of a lost peer."""

_COMMUNICATION_ERROR = re.compile(r"[Cc]ollective|NCCL|RecvBuf")
"""The message of an internal error of communication; the others are faults of code."""


def attempt(run: TrainingRun, signals: Signals, began: float) -> int:
    """Run one attempt, report how it ended, and return the process's exit code.

    Args:
        began: Unix time when the process was started.
    """
    from trainer.worker import modes

    owner = os.getpid()
    channel = run.channel
    try:
        environment.set_tf_config(run.cluster)
        if modes.execute(run, began):
            return DONE
        # Sent by the process that has saved: a worker that dies on its way out has not.
        channel.line("Stopped after saving; the same command continues.")
        # Without a number the signal has reached another process of the run.
        return 128 + (signals.number or signal.SIGTERM)
    except SystemExit as error:
        if os.getpid() != owner:  # a child that the user's code has forked
            raise
        call = RuntimeError(f"your code called sys.exit({error.code!r}) in the middle of the run")
        return _crashed(call.with_traceback(error.__traceback__), channel)
    except Exception as error:
        return _report_error(error, channel, is_known=run.cluster.is_local)


def _report_error(error: Exception, channel: Channel, *, is_known: bool = False) -> int:
    """Report how the attempt failed; return the process's exit code.

    Args:
        is_known: whether the supervisor itself has lost a process of which this one lost contact.
    """
    import tensorflow as tf

    if isinstance(error, ConfigError):
        channel.send(Problem(list(error.problems)))
        return WRONG_INPUT
    if (lost := _lost_contact(error)) is not None:
        (channel.log if is_known else channel.line)(f"warning: {lost}")
        return RESTARTABLE
    # An error that a dataset raises inside a tf.data pipeline arrives as this type.
    cause = re.search(r"^ValueError: (.+)$", str(error), re.MULTILINE)
    if cause and isinstance(error, tf.errors.InvalidArgumentError):
        channel.send(Problem([f"dataset: {cause[1]}"]))
        return WRONG_INPUT
    if isinstance(error, SELF_EXPLANATORY):
        channel.crash(str(error), error_cause(error))
        return CRASHED
    return _crashed(error, channel)


def _lost_contact(error: Exception) -> str | None:
    """Return the cause of an error by which a process notices that it has lost another one."""
    import tensorflow as tf

    from trainer.engine.graph.exchange.shared_rows import PeerLostError

    text = str(error)
    match error:
        case PeerLostError():
            return text
        # An error of Python code inside the graph (tf.py_function) arrives as this type.
        case tf.errors.UnknownError() if "PeerLostError" in text:
            reason = re.search(r"PeerLostError: (.+)", text)
            return reason[1] if reason else text
        case tf.errors.InternalError():
            is_lost = _COMMUNICATION_ERROR.search(text) is not None
        # A process that joins in the moment in which the chief starts again.
        case tf.errors.InvalidArgumentError():
            is_lost = "CoordinationService" in text
        case (
            tf.errors.UnavailableError()
            | tf.errors.AbortedError()
            | tf.errors.DeadlineExceededError()
        ):
            is_lost = _KERNEL_ERROR not in text
        case _:
            return None
    return error_cause(error) if is_lost else None


def prepare() -> None:
    """Import what takes seconds, after setting the environment variables TensorFlow reads."""
    environment.prepare_environment()
    # The imports create millions of permanent objects; collecting them takes a fifth of the time.
    gc.disable()
    import trainer.worker.modes  # noqa: F401

    gc.freeze()
    gc.enable()


def _crashed(error: Exception, channel: Channel) -> int:
    # For the log alone: the warnings of this package's loggers are shown to the user.
    logging.getLogger().error("this process crashed", exc_info=error)
    channel.crash(user_traceback(error), error_cause(error))
    return CRASHED


class Warnings(logging.Handler):
    """Shows the warnings of this package, its models and its datasets to the user."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one warning, unless it is about sending."""
        if record.name != messages.__name__:
            self._send(messages.Line(f"warning: {record.getMessage()}"))


@dataclass(frozen=True)
class Assignment:
    """What the supervisor has sent.

    Attributes:
        memories: descriptors of the memory files, by process; the first is this process's own.
        begin: gets the names of the processes whose memory has a snapshot, when this process may
            restore.
    """

    content: dict[str, Any]
    memories: dict[str, int]
    begin: Future[list[str]]

    def memory_files(self) -> MemoryFiles | None:
        """Return the memory that this process writes to and restores from, or None."""
        by_process = {name: StateMemory(file) for name, file in self.memories.items()}
        if not by_process:
            return None
        return MemoryFiles(next(iter(by_process.values())), by_process, self.begin.result)


def _listen(
    connection: socket.socket, assignments: queue.Queue[Assignment], signals: Signals, send: Send
) -> None:
    """Receive the assignment, then stop and save requests, from the supervisor."""
    try:
        _, (lock, log, *memories), _, _ = socket.recv_fds(connection, 1, _MAX_DESCRIPTORS)
        for file in (lock, *memories):
            os.set_inheritable(file, False)
        os.dup2(log, 2)
        os.close(log)
        begin: Future[list[str]] = Future()
        with connection.makefile("rb") as lines:
            content = json.loads(lines.readline())
            names = content["memories"]
            assignments.put(Assignment(content, dict(zip(names, memories, strict=True)), begin))
            for line in lines:
                match messages.decode(line.decode()):
                    case messages.Dismiss():
                        send(Outcome(DONE))
                        os._exit(DONE)
                    case messages.Begin(processes):
                        begin.set_result(list(processes))
                    case SignalReceived(number):
                        signals.request(number)
    except (ValueError, OSError):
        pass  # the supervisor is gone, and parent_watch ends this process


def work(connection: socket.socket, began: float) -> NoReturn:
    """Do what the supervisor assigns, and exit; this process was requested at Unix time `began`."""
    send = to_socket(connection)
    signals = Signals(lambda number: send(SignalReceived(number)))
    assignments: queue.Queue[Assignment] = queue.Queue()
    threading.Thread(
        target=_listen,
        args=(connection, assignments, signals, send),
        daemon=True,
        name="supervisor",
    ).start()
    prepare()
    signals.unblock()  # in this thread: the threads that exist by now keep them blocked
    assignment = assignments.get()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    environment.add_working_directory()
    logging.getLogger("trainer").addHandler(Warnings(send))
    content = assignment.content
    experiment = loading.restore(content["experiment"])
    cluster = Cluster.from_dict(content["cluster"])
    process_id = cluster.process_id
    channel = Channel(send)
    if process_id.is_beside:
        channel.name = str(process_id)
    from trainer.worker.training import TrainingRun

    run = TrainingRun(
        experiment,
        Path(content["run_dir"]),
        channel,
        cluster,
        signals.stop,
        signals.save,
        assignment.memory_files(),
        assignment.begin.result if content["is_standby"] else None,
    )
    code = attempt(run, signals, began)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # on a full disk the log ends here, with the same exit code
            stream.flush()
    send(Outcome(code))
    # Not sys.exit: threads of TensorFlow and tf.data can make an interpreter's shutdown hang.
    os._exit(code)


def main() -> None:
    """Run the process."""
    began = process_start_time()
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--scratch", required=True)
    args = parser.parse_args()
    connection = socket.socket(fileno=args.socket)
    parent_watch.watch_parent(connection, args.scratch)
    work(connection, began)


if __name__ == "__main__":
    main()
