"""The process of one point: `python -m trainer.sweep.point_main <socket>`, or forked.

It runs the point as a command of its own would, but sends its messages to the sweep's process,
`trainer.sweep.driver`. It ends, and with it its workers, as soon as that process is
gone, even if it was killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trainer.cluster import environment, messages
from trainer.cluster.fork_server import ForkServer
from trainer.cluster.messages import Crash, ErrorLine, Line, Message, Problem, Send, to_socket
from trainer.cluster.signals import survive_saves
from trainer.cluster.stop_requests import SWEEP, StopRequests
from trainer.errors import CRASHED, WRONG_INPUT, ConfigError, StorageError
from trainer.launch.display import Console


class ForwardingConsole(Console):
    """Sends what a console would print to the sweep's process.

    Args:
        send: delivers one message.
    """

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def show(self, message: Message, log: Path) -> None:
        if isinstance(message, Crash):
            self.cause = self.cause or message.cause
        self._send(message)

    def line(self, text: str, *, is_whole: bool = False) -> None:
        self._send(Line(text))

    def error(self, text: str) -> None:
        self.cause = self.cause or text
        self._send(ErrorLine(text))


def prepare() -> None:
    """Import what takes long, in a fork server once for all points."""
    import trainer.launch.launcher  # noqa: F401


def work(connection: socket.socket, began: float) -> NoReturn:
    """Run the point that the first line on the socket describes, and exit with its code.

    Args:
        connection: the socket to the sweep's process.
        began: Unix time when this process was asked for.
    """
    survive_saves()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a fork server blocks what workers handle
    lines = connection.makefile("rb")
    if not (first_line := lines.readline()).endswith(b"\n"):
        os._exit(CRASHED)  # the sweep's process is gone
    assignment = json.loads(first_line)
    if cores := assignment["cores"]:
        os.sched_setaffinity(0, cores)  # before the workers, which inherit it
    server = ForkServer.acquire()
    environment.add_working_directory()
    stop_requests = StopRequests()
    threading.Thread(target=_receive_requests, args=(lines, stop_requests), daemon=True).start()
    sys.argv = assignment["argv"]  # the run's record has the user's command
    send = to_socket(connection)
    code = _run(assignment, server, send, stop_requests)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    send(messages.Outcome(code))
    os._exit(code)  # a forked process has imported TensorFlow, whose shutdown takes time


def main() -> None:
    """Run the process."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    work(connection, time.time())


def _run(
    assignment: dict[str, Any], server: ForkServer, send: Send, stop_requests: StopRequests
) -> int:
    # After the start of a server, if there is none, which imports TensorFlow at the same time.
    from trainer.config import loading
    from trainer.launch import launcher
    from trainer.launch.run_context import Command

    command = Command(
        loading.restore(assignment["experiment"]),
        assignment["overrides"],
        assignment["config_dir"],
        assignment["argv"],
        server,
    )
    console = ForwardingConsole(send)
    try:
        return launcher.run(command, console, stop_requests)
    except ConfigError as error:
        send(Problem(list(error.problems)))
        return WRONG_INPUT
    except StorageError as error:
        console.error(str(error))
        return CRASHED
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        send(Crash(traceback.format_exc(), cause))
        return CRASHED
    finally:
        server.release()


def _receive_requests(lines: BinaryIO, stop_requests: StopRequests) -> None:
    """Take the requests of the sweep's process; exit when it is gone."""
    with suppress(OSError):
        for line in lines:
            match messages.decode(line.decode()):
                case messages.SignalReceived() | messages.Leave() as request:
                    stop_requests.put(request, SWEEP)
    os._exit(CRASHED)


if __name__ == "__main__":
    main()
