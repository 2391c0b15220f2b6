"""One worker process: `python -m trainer.worker --socket <descriptor>`. Started by `trainer.process`.

Imports TensorFlow, is told over the socket what to do, builds the engine, trains. It lives no longer than its supervisor: when the
socket closes, also because the supervisor was killed, it is gone at once (`trainer/lifeline.py`).
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
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer import cluster, config, lifeline
from trainer.channel import Channel, Warnings, to_socket
from trainer.cluster import Cluster
from trainer.errors import CheckpointError, ConfigError, DivergedError, NonFiniteError, StorageError
from trainer.exitcodes import CRASHED, DONE, RESTARTABLE, WRONG_INPUT
from trainer.ledger import process_start
from trainer.schema import Experiment
from trainer.signals import Signals

_OURS = (CheckpointError, DivergedError, NonFiniteError, StorageError)
"""Their message says all; there is no need of a traceback."""

_NAMED = re.compile(r"[\w.]*(?:Error|Exception): (.+)")
_AROUND = (
    "in user code:", "Exception encountered when calling layer", "Graph execution error", "Detected at node", "File ", "<stack traces",
)  # fmt: skip
"""How lines of TensorFlow's and Keras' begin that stand before the user's own message."""


def run(experiment: Experiment, run_dir: Path, channel: Channel, place: Cluster, signals: Signals, began: float) -> int:
    """Runs one attempt and reports how it ended.

    Args:
        experiment: the effective configuration.
        run_dir: the run directory.
        channel: tells the user.
        place: which process of the run this is.
        signals: what is asked for from outside.
        began: Unix time when the process was started.

    Returns:
        The process's exit code.
    """
    _import_tensorflow()
    import tensorflow as tf

    from trainer import modes

    try:
        cluster.enter(place)
        if modes.run(experiment, run_dir, channel, place, signals, began):
            return DONE
        # Said here, by the one who has saved: a worker that dies on the way out must not be taken for one that did.
        channel.line("Stopped after saving; the same command continues.")
        return 128 + (signals.number or signal.SIGTERM)  # it may have reached another process
    except ConfigError as error:
        channel.problem(list(error.problems))
        return WRONG_INPUT
    except _OURS as error:
        channel.crash(str(error), cause_of(error))
        return CRASHED
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError) as error:
        channel.line(f"warning: {str(error).strip().splitlines()[0]}")
        return RESTARTABLE
    except tf.errors.UnknownError as error:
        # How an error comes out of Python code inside the graph.
        if "PeerLostError" in str(error):
            channel.line("warning: another process has gone")
            return RESTARTABLE
        return _crashed(error, channel)
    except tf.errors.InvalidArgumentError as error:
        # How an error that a dataset raises inside TensorFlow's pipeline comes out again.
        if told := re.search(r"^ValueError: (.+)$", str(error), re.MULTILINE):
            channel.problem([f"dataset: {told[1]}"])
            return WRONG_INPUT
        return _crashed(error, channel)
    except Exception as error:
        return _crashed(error, channel)


def _import_tensorflow() -> None:
    """Imports what takes seconds, once the environment is what TensorFlow must find."""
    cluster.prepare_environment()
    # Millions of objects are made here that all stay: to go through them again and again takes a fifth of the time.
    gc.disable()
    import trainer.engine
    import trainer.modes  # noqa: F401

    gc.freeze()
    gc.enable()


def _crashed(error: Exception, channel: Channel) -> int:
    logging.getLogger(__name__).error("the worker crashed", exc_info=error)
    channel.crash(users_traceback(error), cause_of(error))
    return CRASHED


def users_traceback(error: BaseException) -> str:
    """Gives the traceback without the frames of this package, TensorFlow and Keras, unless there are no others."""
    own = str(Path(__file__).resolve().parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((own, "<")) and "site-packages" not in frame.filename]
    theirs = [frame for frame in theirs if "__autograph_generated_file" not in frame.filename and "importlib" not in frame.filename]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(theirs or frames[-1:])]
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()


def cause_of(error: BaseException) -> str:
    """Words an error in one line: the innermost one, where TensorFlow and Keras have wrapped another and told where it came from."""
    if isinstance(error, _OURS):
        return str(error).splitlines()[0]
    lines = [re.sub(r"^\{\{.*?\}\} ", "", line.strip()) for line in str(error).splitlines()]
    named = [line for line in lines if (found := _NAMED.match(line)) and not found[1].startswith(_AROUND)]
    told = [line for line in lines if line and not line.startswith(_AROUND)]
    return named[-1] if named else ": ".join([type(error).__name__, *told[:1]])


def _listen(connection: socket.socket, assignments: queue.Queue[dict[str, Any]], signals: Signals) -> None:
    """Takes the assignment and requests from the supervisor."""
    try:
        _, (lock, log), _, _ = socket.recv_fds(connection, 1, 2)
        os.set_inheritable(lock, False)
        os.dup2(log, 2)
        os.close(log)
        with connection.makefile("rb") as lines:
            assignments.put(json.loads(lines.readline()))
            for line in lines:
                if line == b"leave\n":
                    os._exit(DONE)
                signals.request(int(line.removeprefix(b"signal ")))
    except (ValueError, ConnectionResetError):
        pass  # the supervisor is gone, and this process is about to be


def main() -> None:
    """Entry point of the process."""
    began = process_start()
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--scratch", required=True)
    args = parser.parse_args()
    connection = socket.socket(fileno=args.socket)
    lifeline.tie(connection, args.scratch)
    send = to_socket(connection)
    signals = Signals(lambda number: send({"kind": "signal", "number": number}))
    assignments: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, assignments, signals), daemon=True, name="supervisor").start()
    _import_tensorflow()
    signals.let_in()  # the threads that exist by now do not take part in it
    assignment = assignments.get()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if (directory := os.getcwd()) not in sys.path:
        sys.path.insert(0, directory)
    logging.getLogger("trainer").addHandler(Warnings(send))
    experiment, place = config.restore(assignment["experiment"]), cluster.restore(assignment["cluster"])
    code = run(experiment, Path(assignment["run_dir"]), Channel(send), place, signals, began)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk: the log ends here, the exit code does not change
            stream.flush()
    # Not sys.exit: TensorFlow's threads and tf.data's can make an orderly interpreter shutdown hang or crash.
    os._exit(code)


if __name__ == "__main__":
    main()
