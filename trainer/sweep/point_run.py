"""One point of a sweep: `python -m trainer.sweep.point_run <socket> <cores>`. Started by `trainer.sweep.process`. No TensorFlow.

It does what the command of this one run would do, but tells its messages to the driver. When the driver is gone, also because it was
killed, it is gone at once, and with it its workers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from trainer.channel import Send, to_socket
from trainer.console import Console
from trainer.errors import ConfigError, StorageError
from trainer.exitcodes import CRASHED, WRONG_INPUT
from trainer.process import WorkerProcess
from trainer.signals import SAVE


class Relay(Console):
    """Sends to the driver what a console would show."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def show(self, message: Mapping[str, Any], log: Path) -> None:
        if message["kind"] == "crash":
            self.cause = self.cause or message["cause"]
        self._send({**message, "from": None, "log": str(log)})

    def line(self, text: str) -> None:
        self._send({"kind": "line", "text": text})

    def error(self, text: str) -> None:
        self.cause = self.cause or text
        self._send({"kind": "error", "text": text})


def main() -> None:
    """Entry point of the process."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    if sys.argv[2]:
        os.sched_setaffinity(0, [int(core) for core in sys.argv[2].split(",")])  # the workers inherit it
    signal.signal(SAVE, signal.SIG_IGN)  # until there is something to save
    spare = WorkerProcess()  # it imports TensorFlow meanwhile
    if (directory := os.getcwd()) not in sys.path:
        sys.path.append(directory)
    lines = connection.makefile("rb")
    if not (told := lines.readline()).endswith(b"\n"):
        sys.exit(CRASHED)  # the driver is gone
    assignment, asked = json.loads(told), deque[int]()
    threading.Thread(target=_listen, args=(lines, asked), daemon=True).start()
    sys.argv = assignment["argv"]  # the run's record tells the user's
    sys.exit(_run(assignment, spare, to_socket(connection), asked))


def _run(assignment: dict[str, Any], spare: WorkerProcess, send: Send, asked: deque[int]) -> int:
    from trainer import config, launch

    experiment, console = config.restore(assignment["experiment"]), Relay(send)
    try:
        return launch.run(experiment, assignment["overrides"], assignment["config_dir"], spare, console, asked)
    except ConfigError as error:
        send({"kind": "problem", "lines": list(error.problems)})
        return WRONG_INPUT
    except StorageError as error:
        console.error(str(error))
        return CRASHED
    except Exception as error:
        send({"kind": "crash", "text": traceback.format_exc(), "cause": f"{type(error).__name__}: {error}"})
        return CRASHED
    finally:
        spare.discard()


def _listen(lines: BinaryIO, asked: deque[int]) -> None:
    """Takes requests of the driver, and ends this process when it is gone."""
    with suppress(ConnectionResetError):
        for line in lines:
            number = int(line.removeprefix(b"signal "))
            asked.append(number)
            os.kill(os.getpid(), number)
    os._exit(CRASHED)


if __name__ == "__main__":
    main()
