"""The process of one point: its messages, and that it ends with its parent."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import wait_gone
from trainer.cli.compose import compose
from trainer.cluster import environment
from trainer.cluster.messages import Crash, ErrorLine, Exit, Line, Message, Problem
from trainer.launch.processes.fork_server import ForkServer
from trainer.sweep.points.point_main import ForwardingConsole
from trainer.sweep.points.point_process import PointMessages, PointProcess, without_sweep_overrides
from trainer.sweep.points.points import Point
from trainer.sweep.points.resources import ResourceShare


@pytest.fixture(params=[pytest.param("fresh", marks=pytest.mark.slow), "forked"])
def started(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[PointProcess, PointMessages]:
    """A point whose run directory has another configuration: it ends without training."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/config.yaml").write_text("seed: 1\n")
    experiment = compose(["resume=run", "model=softmax"])
    messages: PointMessages = queue.SimpleQueue()
    point = Point(3, {}, ["model=softmax"], experiment, Path("run"))
    server = ForkServer.acquire() if request.param == "forked" else None
    process = PointProcess(point, ResourceShare((0,)), None, messages, server)
    return process, messages


def test_point_process_sends_problems_and_its_exit_code(
    started: tuple[PointProcess, PointMessages],
) -> None:
    _, messages = started
    number, problem = messages.get(timeout=120)
    assert number == 3
    assert isinstance(problem, Problem)
    assert problem.lines[0].startswith("run/run.json cannot be read: it is missing")
    assert messages.get(timeout=120) == (3, Exit(2))


def test_point_process_ends_when_its_parent_closes_the_socket(tmp_path: Path) -> None:
    parent_socket, child_socket = socket.socketpair()
    with parent_socket, child_socket:
        descriptor = child_socket.fileno()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer.sweep.points.point_main", str(descriptor)],
            pass_fds=(descriptor,),
            cwd=tmp_path,
            env=environment.point_environment(None, None),
        )
    assert process.wait(timeout=120) == 1
    wait_gone(process.pid)
    assert not list(tmp_path.iterdir())


def test_overrides_of_the_sweep_are_not_recorded() -> None:
    of_sweep = [
        "sweep.jobs=2",
        "search=random",
        "search.trials=3",
        "+hydra.x=1",
        "hydra/launcher=x",
    ]
    overrides = ["seed=1", *of_sweep, "schedule=cosine"]
    assert without_sweep_overrides(overrides) == ["seed=1", "schedule=cosine"]


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
