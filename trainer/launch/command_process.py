"""A process that runs a checked experiment, as its own command would.

A point of a sweep, or a run of `mode=verify`. It sends its messages to the process that has started
it, and ends with that one, even if it was killed: `python -m
trainer.launch.command_process <socket>`, or forked.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from trainer.cluster import environment
from trainer.cluster.fork_server import SOCKET, ForkServer
from trainer.cluster.messages import (
    Crash,
    ErrorLine,
    Leave,
    Line,
    Message,
    Outcome,
    Problem,
    Send,
    SignalReceived,
    decode,
    to_socket,
)
from trainer.cluster.signals import SWEEP, StopRequests, survive_saves
from trainer.errors import CRASHED, WRONG_INPUT, ConfigError, StorageError
from trainer.files import making_temporary_files
from trainer.launch.display import Console
from trainer.launch.processes import Child

if TYPE_CHECKING:
    from trainer.launch.run_context import Command

_MAX_OUTPUT_BYTES = 1_000_000


class CommandProcess(Child):
    """The process, as the one that starts it sees it.

    Args:
        command: what it runs; its server forks the process and its workers, or None: the process
            gets one for its workers.
        put: takes its messages, the last of which is `Exit`.
    """

    def __init__(
        self,
        command: Command,
        variables: dict[str, str],
        put: Callable[[Message], None],
        cores: Sequence[int] = (),
    ) -> None:
        from trainer.config import loading

        server = command.server
        if server:
            environment.name_fork_server(variables, str(server.directory))
        # What a process prints that fails before it can send a message.
        with making_temporary_files():
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
        output = self._output.fileno()
        words = ["trainer.launch.command_process", SOCKET]
        super().__init__(words, variables, [output, output], server=server)
        assignment = {
            "argv": list(command.argv),
            "cores": list(cores),
            "experiment": loading.plain(command.experiment),
            "overrides": list(command.overrides),
            "config_dir": command.config_dir,
        }
        self.send_line(json.dumps(assignment).encode() + b"\n")

        def end_output(is_read: bool) -> str:
            # `pread` leaves the position alone, at which children of the process may still write.
            content = os.pread(output, _MAX_OUTPUT_BYTES, 0)
            self._output.close()
            return content.decode(errors="replace").strip()

        self.follow(put, "", end_output=end_output)


class ForwardingConsole(Console):
    """Sends what a console would print to the process that has started this one."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def show(self, message: Message, log: Path) -> None:
        match message:
            case Crash(cause=cause) | ErrorLine(cause):
                self.cause = self.cause or cause
        self._send(message)

    def line(self, text: str, *, is_whole: bool = False) -> None:
        self._send(Line(text))

    def error(self, text: str) -> None:
        self.cause = self.cause or text
        self._send(ErrorLine(text))


def prepare() -> None:
    """Import what takes long, in a fork server once for all commands."""
    import trainer.launch.launcher  # noqa: F401


def work(connection: socket.socket, began: float) -> NoReturn:
    """Run what the first line on the socket describes, and exit with its code.

    Args:
        connection: the socket to the process that has started this one.
    """
    survive_saves()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a fork server blocks what workers handle
    lines = connection.makefile("rb")
    if not (first_line := lines.readline()).endswith(b"\n"):
        os._exit(CRASHED)  # nothing waits for it any more
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
    send(Outcome(code))
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
    """Take the requests of the process that has started this one; exit when it is gone."""
    with suppress(OSError):
        for line in lines:
            match decode(line.decode()):
                case SignalReceived() | Leave() as request:
                    stop_requests.put(request, SWEEP)
    os._exit(CRASHED)


if __name__ == "__main__":
    main()
