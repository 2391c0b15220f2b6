"""What people see: plain lines without a terminal, a bar with one."""

import io
from pathlib import Path

import pytest

from trainer.console import Console, duration, progress_text

LOG = Path("runs/x/logs/worker-0.log")
CLEAR = "\r\x1b[2K"
MESSAGE = {
    "kind": "progress",
    "step": 120,
    "total": 360,
    "rate": 1519.6,
    "secs_left": 12.4,
    "metrics": {"loss": 0.21129, "accuracy": 0.9375},
}
TEXT = "120/360  0:12 left  loss 0.2113  accuracy 0.9375  1,520 examples/s"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Shown:
    """A console on strings, with a clock that is moved by hand."""

    def __init__(self, out):
        self.out, self.err, self.clock = out, io.StringIO(), Clock()
        self.console = Console(self.out, self.err, self.clock)

    def show(self, **message):
        self.console.show(message, LOG)
        return self

    def take(self):
        text = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return text


@pytest.fixture
def plain():
    return Shown(io.StringIO())


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return Shown(Terminal())


def test_lines_and_the_output_of_users_code_are_shown_as_they_are(plain):
    plain.show(kind="line", text="Number of devices: 2").show(kind="output", text="  from print()")
    assert plain.take() == "Number of devices: 2\n  from print()\n"
    assert plain.err.getvalue() == ""


def test_progress_without_a_terminal_is_a_line_every_30_seconds(plain):
    shown = []
    for second in range(100):
        plain.clock.now = 1000.0 + second
        plain.show(**{**MESSAGE, "step": second})
        if text := plain.take():
            shown.append((second, text))
    assert shown == [(second, "step " + TEXT.replace("120/", f"{second}/") + "\n") for second in (30, 60, 90)]


def test_phases_are_not_shown_without_a_terminal(plain):
    for phase in ("start", "compile", "train", "evaluate", "save"):
        plain.show(kind="phase", phase=phase, step=0)
    plain.console.close()
    assert plain.take() == ""


def test_a_bar_is_drawn_and_redrawn_on_a_terminal(terminal):
    terminal.show(**MESSAGE)
    bar = f"[#####...........] {TEXT}"
    assert terminal.take() == bar
    terminal.show(**{**MESSAGE, "step": 360})
    assert terminal.take() == f"{CLEAR}[{'#' * 16}] {TEXT.replace('120/', '360/')}"


def test_a_line_stands_above_the_bar(terminal):
    terminal.show(kind="line", text="before")
    assert terminal.take() == "before\n"
    terminal.show(**MESSAGE).take()
    terminal.show(kind="line", text="a line")
    assert terminal.take() == f"{CLEAR}a line\n[#####...........] {TEXT}"
    terminal.console.close()
    assert terminal.take() == CLEAR
    terminal.show(kind="line", text="after")
    assert terminal.take() == "after\n"


def test_the_bar_never_reaches_the_last_column(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal.show(**MESSAGE)
    assert terminal.take() == f"[#####...........] {TEXT}"[:39]


def test_slow_phases_are_told_on_a_terminal(terminal):
    terminal.show(kind="phase", phase="start", step=0)
    assert terminal.take() == "starting ..."
    terminal.show(kind="phase", phase="compile", step=0)
    assert terminal.take() == f"{CLEAR}compiling ..."
    terminal.show(kind="phase", phase="save", step=5)
    assert terminal.take() == ""


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_problems_are_one_line_each_on_standard_error(make):
    shown = Shown(make()).show(kind="problem", lines=["seed (-1) must be >= 0", "dataset: no such file"])
    assert shown.err.getvalue() == "error: seed (-1) must be >= 0\nerror: dataset: no such file\n"
    assert shown.take() == ""


def test_a_crash_shows_the_traceback_and_where_the_log_is(plain):
    plain.show(kind="crash", text="Traceback (most recent call last):\nValueError: x", cause="ValueError: x")
    expected = f"Traceback (most recent call last):\nValueError: x\nerror: the worker crashed; the whole log is {LOG}\n"
    assert plain.err.getvalue() == expected
    assert plain.take() == ""


def test_the_first_cause_is_kept(plain):
    assert plain.console.cause == ""
    plain.show(kind="crash", text="Traceback ...", cause="ValueError: x").console.error("gave up")
    assert plain.console.cause == "ValueError: x"
    assert Shown(io.StringIO()).show(kind="problem", lines=["one", "two"]).console.cause == "one"


def test_an_error_removes_the_bar_for_good(terminal):
    terminal.show(**MESSAGE).take()
    terminal.console.error("gave up")
    assert terminal.take() == CLEAR
    assert terminal.err.getvalue() == "error: gave up\n"
    terminal.show(kind="line", text="after")
    assert terminal.take() == "after\n"


def test_a_crash_clears_the_bar_first():
    shared = Terminal()
    console = Console(shared, shared, Clock())
    console.show(MESSAGE, LOG)
    drawn = shared.getvalue()
    console.show({"kind": "crash", "text": "boom", "cause": "boom"}, LOG)
    assert shared.getvalue()[len(drawn) :].startswith(f"{CLEAR}boom\n")


def test_progress_leaves_out_what_is_not_known_yet():
    assert progress_text({"step": 1, "total": 9, "rate": 0.0, "secs_left": None, "metrics": {}}) == "1/9"
    assert progress_text(MESSAGE) == TEXT


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (0, "0:00"),
        (0.4, "0:00"),
        (12, "0:12"),
        (59.6, "1:00"),
        (185, "3:05"),
        (3599.9, "1:00:00"),
        (3723, "1:02:03"),
        (360_000, "100:00:00"),
    ],
)
def test_duration(secs, text):
    assert duration(secs) == text
