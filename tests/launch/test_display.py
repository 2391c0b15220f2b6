"""The display of a run: plain lines, or on a terminal lines above a live view."""

import io
import itertools
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.terminal import Clock, FakeTerminal, rendered, screen_of
from trainer.cluster.messages import Crash, Line, Output, Phase, Problem, Progress
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Launch
from trainer.launch.display import Console, Screen, is_quiet

LOG = Path("runs/x/logs/worker-0.log")
PROGRESS = Progress(120, 360, 1519.6, 12.4, {"loss": 0.21129, "accuracy": 0.9375}, "11/30")
TEXT = "120/360  12 s left  loss 0.2113  accuracy 0.9375  1,520 examples/s"
WORKERS = [ProcessId("worker", index) for index in range(2)]


@pytest.fixture
def clock():
    return Clock()


def test_quiet_console_shows_warnings_and_errors_alone():
    out, err = io.StringIO(), io.StringIO()
    console = Console(out, err, is_quiet=True)
    for message in (Line("Done: step 4"), Output("print"), Line("warning: late")):
        console.show(message, LOG)
    console.show(Problem(["seed (-1) must be >= 0", "dataset: no"]), LOG)
    assert out.getvalue() == "warning: late\n"
    assert err.getvalue() == "error: seed (-1) must be >= 0\nerror: dataset: no\n"


@pytest.mark.parametrize(
    ("source", "index", "console", "quiet"),
    [
        ("Slurm", 1, "chief", True),
        ("Slurm", 0, "chief", False),
        ("Slurm", 1, "all", False),
        ("TF_CONFIG", 1, "chief", False),
    ],
)
def test_scheduled_processes_other_than_the_chief_are_quiet(source, index, console, quiet):
    cluster = Cluster(ProcessId("worker", index), {}, source)
    assert is_quiet(cluster, Launch(console=console)) is quiet


def test_progress_without_a_terminal_is_a_line_every_30_seconds(clock):
    out = io.StringIO()
    console = Console(out, out, clock)
    for second in range(100):
        clock.now = 1000.0 + second
        console.show(replace(PROGRESS, step=second), LOG)
    assert out.getvalue().splitlines() == [
        "step " + TEXT.replace("120/", f"{second}/") for second in (30, 60, 90)
    ]


def test_live_view_of_two_processes(clock):
    console = Console(io.StringIO(), io.StringIO(), clock)
    console.begin(WORKERS[0])
    console.begin(WORKERS[1])
    console.update(WORKERS[0], Phase("join", 0))
    assert rendered(console) == ["worker-0  join (waits for worker-1)", "worker-1  start"]
    console.update(WORKERS[0], PROGRESS)
    console.show(PROGRESS, LOG)
    console.update(WORKERS[1], Phase("train", 7))
    clock.now += 84
    console.update(WORKERS[0], Phase("save", 121))
    assert rendered(console, 100) == [
        f"━━━         {TEXT}  epoch 11/30",
        "worker-0  save      step 121",
        "worker-1  train     step 7  no news for 1:24 min",
    ]


def test_lines_stand_above_the_live_view_which_goes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = FakeTerminal()
    console = Console(out, out)
    console.begin(WORKERS[0])
    console.line("warning: slow")
    console.error("no such file")
    assert screen_of(out.getvalue(), colors=True) == [
        "<33>warning:<0> slow",
        "<31>error:<0> no such file",
        "start ...",
    ]
    console.close()
    assert screen_of(out.getvalue())[2:] == []
    assert "\x1b[?25l" not in out.getvalue()  # the cursor is never hidden


def test_no_line_is_erased_by_a_block_that_changes_its_height(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    heights = itertools.cycle(range(5))

    class Block:
        def __rich__(self):
            return "\n".join(["block"] * next(heights))

    out = FakeTerminal()
    screen = Screen(out, out, Block())
    screen.start()
    drawing = threading.Event()
    drawing.set()
    thread = threading.Thread(
        target=lambda: [screen._live.refresh() for _ in iter(drawing.is_set, False)]
    )
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    lines = [f"line {number}" for number in range(200)]
    for line in lines:
        screen.line(line)
    drawing.clear()
    thread.join()
    sys.setswitchinterval(interval)
    screen.close()
    assert screen_of(out.getvalue()) == lines


def test_console_keeps_the_first_cause():
    plain = Console(io.StringIO(), io.StringIO())
    assert plain.cause == ""
    plain.show(Crash("Traceback ...", "ValueError: x"), LOG)
    plain.error("gave up")
    assert plain.cause == "ValueError: x"


def test_run_that_diverges_has_not_crashed():
    err = io.StringIO()
    Console(io.StringIO(), err).show(Crash("the loss became nan", "the loss became nan"), LOG)
    assert err.getvalue() == "error: the loss became nan\n"
