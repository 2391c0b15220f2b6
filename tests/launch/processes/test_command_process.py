"""The process of one command: its messages, and that it ends with its parent."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.support.processes import wait_gone
from trainer.cluster import environment
from trainer.cluster.messages import Crash, ErrorLine, Line, Message
from trainer.launch.processes.command_process import ForwardingConsole


def test_process_ends_when_its_parent_closes_the_socket(tmp_path: Path) -> None:
    parent_socket, child_socket = socket.socketpair()
    with parent_socket, child_socket:
        descriptor = child_socket.fileno()
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "trainer.launch.processes.command_process",
                str(descriptor),
            ],
            pass_fds=(descriptor,),
            cwd=tmp_path,
            env=environment.point_environment(None, None),
        )
    assert process.wait(timeout=120) == 1
    wait_gone(process.pid)
    assert not list(tmp_path.iterdir())


def test_forwarding_console_sends_what_it_would_print() -> None:
    messages: list[Message] = []
    console = ForwardingConsole(messages.append)
    console.line("a line")
    crash = Crash("Traceback", "ValueError: x")
    console.show(crash, Path("log"))
    console.error("it crashed")
    console.close()
    assert messages == [Line("a line"), crash, ErrorLine("it crashed")]
    assert console.cause == "ValueError: x"
