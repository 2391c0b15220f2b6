"""The process of one point: what it is told, what it tells, and that it ends with the driver."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import wait_gone

from trainer import cluster
from trainer.composition import compose
from trainer.sweep.point_run import Relay
from trainer.sweep.points import Point
from trainer.sweep.process import PointProcess, recorded
from trainer.sweep.slots import Slot


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PointProcess, queue.SimpleQueue[dict[str, Any]]]:
    """A point whose directory is another's, so that it comes to its end without training."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/config.yaml").write_text("seed: 1\n")
    experiment = compose(["resume=run", "model=softmax"])
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    return PointProcess(Point(3, {}, ["model=softmax"], experiment, Path("run")), Slot((0,)), None, messages), messages


def test_it_tells_what_is_wrong_and_how_it_ended(started: tuple[PointProcess, queue.SimpleQueue[dict[str, Any]]]) -> None:
    _, messages = started
    first, last = messages.get(timeout=120), messages.get(timeout=120)
    assert (first["kind"], first["from"], last) == ("problem", 3, {"kind": "exit", "code": 2, "text": "", "from": 3})
    assert first["lines"][0].startswith("run was trained with other values")


def test_it_can_be_ended_at_once(started: tuple[PointProcess, queue.SimpleQueue[dict[str, Any]]]) -> None:
    process, messages = started
    process.kill()
    told = [messages.get(timeout=120)]
    while told[-1]["kind"] != "exit":
        told.append(messages.get(timeout=120))
    assert told[-1]["code"] == -signal.SIGKILL


def test_it_ends_with_the_driver(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer.sweep.point_run", str(theirs.fileno()), ""],
            pass_fds=(theirs.fileno(),),
            cwd=tmp_path,
            env=cluster.point_environment(None, None),
        )
    assert process.wait(timeout=120) == 1
    wait_gone(process.pid)
    assert not list(tmp_path.iterdir())


def test_what_concerns_the_sweep_is_no_part_of_a_points_record() -> None:
    overrides = ["seed=1", "sweep.jobs=2", "search=random", "search.trials=3", "+hydra.x=1", "hydra/launcher=joblib", "schedule=cosine"]
    assert recorded(overrides) == ["seed=1", "schedule=cosine"]


def test_what_a_console_would_show_is_told() -> None:
    told: list[dict[str, Any]] = []
    relay = Relay(told.append)
    relay.line("a line")
    relay.show({"kind": "crash", "text": "Traceback", "cause": "ValueError: x", "from": object()}, Path("log"))
    relay.error("it crashed")
    relay.close()
    assert [message["kind"] for message in told] == ["line", "crash", "error"]
    assert json.dumps(told)
    assert relay.cause == "ValueError: x"
