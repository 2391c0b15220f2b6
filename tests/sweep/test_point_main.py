"""The process of one point: its messages, and that it ends with its parent."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.support.processes import wait_gone
from trainer.cli.compose import compose
from trainer.cluster import environment
from trainer.cluster.messages import Crash, ErrorLine, Line, Message
from trainer.sweep.point_main import ForwardingConsole
from trainer.sweep.search import Point


def test_point_process_ends_when_its_parent_closes_the_socket(tmp_path: Path) -> None:
    parent_socket, child_socket = socket.socketpair()
    with parent_socket, child_socket:
        descriptor = child_socket.fileno()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer.sweep.point_main", str(descriptor)],
            pass_fds=(descriptor,),
            cwd=tmp_path,
            env=environment.point_environment(None, None),
        )
    assert process.wait(timeout=120) == 1
    wait_gone(process.pid)
    assert not list(tmp_path.iterdir())


def test_overrides_of_the_sweep_are_not_recorded() -> None:
    of_sweep = ["sweep.jobs=2", "search=random", "search.trials=3", "+hydra.x=1", "hydra/x=y"]
    point = Point(1, {}, ["seed=1", *of_sweep, "schedule=cosine"], compose([]), Path())
    assert point.own_overrides == ["seed=1", "schedule=cosine"]


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
