"""What people see: plain lines without a terminal; with one what each process does, how far the run is, and lines above that."""

import io
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, TIMEOUT_SECS
from tests.terminal import Clock, Emulator, Terminal, in_terminal, screen_of
from tests.training import SMALL
from trainer.cluster import Task
from trainer.console import Console, progress_text

LOG = Path("runs/x/logs/worker-0.log")
MESSAGE = {
    "kind": "progress",
    "step": 120,
    "total": 360,
    "rate": 1519.6,
    "secs_left": 12.4,
    "metrics": {"loss": 0.21129, "accuracy": 0.9375},
}
TEXT = "120/360  0:12 left  loss 0.2113  accuracy 0.9375  1,520 examples/s"
BAR = f"[#####...........] {TEXT}"
ONE, TWO = [Task("worker", 0)], [Task("worker", 0), Task("worker", 1)]


class Shown:
    """A console on strings, with a clock that is moved by hand."""

    def __init__(self, out, tasks=ONE, err=None):
        self.out, self.err, self.clock = out, err or io.StringIO(), Clock()
        self.console = Console(self.out, self.err, self.clock)
        for task in tasks:
            self.console.begin(task)
        self.chief = tasks[0]

    def show(self, **message):
        """Gets a message of the chief."""
        self.clock.now += 1.0
        if message["kind"] in ("phase", "progress"):
            self.console.heard(self.chief, message)
        self.console.show(message, LOG)
        return self

    def hear(self, task, phase, step=0, *, after=1.0):
        """Hears of a process."""
        self.clock.now += after
        self.console.heard(task, {"kind": "phase", "phase": phase, "step": step})
        return self

    def wait(self, secs):
        """Lets time pass as the group does, which refreshes when it is time."""
        end = self.clock.now + secs
        while self.console.refresh_at() <= end:
            self.clock.now = max(self.clock.now, self.console.refresh_at())
            self.console.refresh()
        self.clock.now = max(self.clock.now, end)
        return self

    def take(self):
        text = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return text

    def screen(self, **options):
        self.wait(0.25)
        return screen_of(self.out.getvalue(), **options)


@pytest.fixture(autouse=True)
def window(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def plain():
    return Shown(io.StringIO())


@pytest.fixture
def terminal():
    return Shown(Terminal())


@pytest.fixture
def pair():
    return Shown(Terminal(), TWO)


def test_lines_and_the_output_of_users_code_are_shown_as_they_are(plain):
    plain.show(kind="line", text="Number of devices: 2").show(kind="output", text="  from print()")
    assert plain.take() == "Number of devices: 2\n  from print()\n"
    assert plain.err.getvalue() == ""


def test_progress_without_a_terminal_is_a_line_every_30_seconds(plain):
    shown = []
    for second in range(100):
        plain.clock.now = 999.0 + second
        plain.show(**{**MESSAGE, "step": second})
        if text := plain.take():
            shown.append((second, text))
    assert shown == [(second, "step " + TEXT.replace("120/", f"{second}/") + "\n") for second in (30, 60, 90)]


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_what_is_no_terminal_or_a_dumb_one_gets_plain_lines_alone(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    shown = Shown(io.StringIO() if term == "xterm" else Terminal(), TWO)
    for phase in ("start", "compile", "train", "evaluate", "save"):
        shown.show(kind="phase", phase=phase, step=0).hear(TWO[1], phase)
    assert shown.console.refresh_at() == float("inf")
    shown.show(**MESSAGE).show(kind="line", text="warning: slow").console.ended(TWO[1], "lost", "was killed by SIGKILL")
    shown.console.refresh()
    shown.console.close()
    assert shown.take() == "warning: slow\n"


def test_a_run_of_one_process_has_one_line_that_tells_how_far_it_is_and_what_else_it_does(terminal):
    for phase, line in (("start", "starting ..."), ("compile", "compiling ...")):
        assert terminal.show(kind="phase", phase=phase, step=0).screen() == [line]
    assert terminal.show(**MESSAGE).screen() == [BAR]
    assert terminal.show(kind="phase", phase="evaluate", step=120).screen() == [f"{BAR}  evaluating"]
    assert terminal.show(kind="phase", phase="train", step=120).screen() == [BAR]
    assert terminal.show(**{**MESSAGE, "step": 360}).screen() == [f"[{'#' * 16}] {TEXT.replace('120/', '360/')}"]
    terminal.console.begin(ONE[0])
    assert terminal.screen() == ["restarting ..."]


def test_every_process_of_several_has_a_line_below_that_of_the_run(pair):
    assert pair.wait(1).screen() == ["worker-0  starting", "worker-1  starting"]
    pair.hear(TWO[0], "join")
    assert pair.screen() == ["worker-0  waiting for worker-1", "worker-1  starting"]
    pair.hear(TWO[1], "start").hear(TWO[0], "compile").show(**MESSAGE).hear(TWO[1], "train", 119)
    assert pair.screen() == [BAR, "worker-0  training    step 120", "worker-1  training    step 119"]


def test_who_serves_or_waits_says_so():
    tasks = [Task("chief", 0), Task("ps", 0), Task("evaluator", 0)]
    shown = Shown(Terminal(), tasks).hear(tasks[0], "join").hear(tasks[1], "serve").hear(tasks[2], "wait", 40).hear(tasks[0], "join")
    assert shown.screen() == [
        "chief-0      waiting for the others",
        "ps-0         serving",
        "evaluator-0  waiting for a checkpoint  step 40",
    ]


def test_who_is_silent_stands_out_where_that_is_no_good_sign(pair):
    pair.hear(TWO[0], "compile").hear(TWO[1], "train", 7).wait(9)
    assert pair.screen(colors=True) == ["worker-0  compiling   for 0:10", "worker-1  training    step 7"]
    pair.wait(75)
    assert pair.screen(colors=True) == [
        "worker-0  compiling   for 1:25",
        "<33>worker-1  training    step 7  no news for 1:24<0>",
    ]


def test_a_run_of_one_process_tells_its_silence_too(terminal):
    assert terminal.hear(ONE[0], "compile").wait(34).screen() == ["compiling ... for 0:34"]
    assert terminal.show(**MESSAGE).wait(12).screen(colors=True) == [f"{BAR}  <33>no news for 0:12<0>"]


def test_who_is_lost_stands_out_and_is_started_again(pair):
    pair.show(**MESSAGE).hear(TWO[1], "train", 119)
    pair.console.ended(TWO[1], "lost", "was killed by SIGKILL")
    pair.console.ended(TWO[0], "left", "lost its peers")
    assert pair.wait(1).screen(colors=True)[1:] == [
        "<2>worker-0  left        lost its peers<0>",
        "<31>worker-1  lost        was killed by SIGKILL<0>",
    ]
    for task in TWO:
        pair.console.begin(task)
    assert pair.hear(TWO[1], "start").screen() == ["worker-0  restarting", "worker-1  restarting"]
    assert pair.hear(TWO[1], "compile").screen() == ["worker-0  restarting", "worker-1  compiling"]


def test_many_processes_are_counted_and_those_shown_that_stand_out():
    tasks = [Task("worker", index) for index in range(16)]
    shown = Shown(Terminal(), tasks)
    assert shown.wait(1).screen() == ["16 starting"]
    for task in tasks:
        shown.hear(task, "train", 50, after=0.0)
    shown.hear(tasks[7], "compile")
    assert shown.screen() == ["15 training, 1 compiling: worker-7"]
    for index in (1, 2, 3):
        shown.hear(tasks[index], "save")
    shown.console.ended(tasks[4], "lost", "was killed by SIGKILL")
    assert shown.wait(1).screen() == [
        "11 training, 3 saving, 1 lost: worker-4, 1 compiling: worker-7",
        "worker-4  lost        was killed by SIGKILL",
    ]
    assert len(shown.wait(60).screen()) == 8


def test_it_is_drawn_a_few_times_a_second_at_most_and_nothing_is_left_out(pair):
    drawings = 0
    for turn in range(128):  # two seconds
        pair.hear(TWO[turn % 2], "train", turn, after=1 / 64)
        drawings += bool(pair.take())
    assert drawings == 8
    pair.hear(TWO[1], "save", 300, after=0.0).wait(0.3)
    assert "saving      step 300" in pair.take()


def test_what_has_not_changed_is_not_drawn_again(pair):
    pair.hear(TWO[0], "train", 7).hear(TWO[1], "train", 7).wait(0.3).take()
    assert pair.wait(5).take() == ""


def test_lines_stand_above(terminal):
    terminal.show(kind="line", text="before").show(**MESSAGE).show(kind="line", text="a line")
    assert terminal.screen() == ["before", "a line", BAR]
    terminal.console.close()
    terminal.show(kind="line", text="after")
    assert terminal.screen() == ["before", "a line", "after"]


def test_a_narrow_window_cuts(pair, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    pair.show(**MESSAGE)
    assert pair.screen(columns=40) == [f"{BAR[:38]}…", "worker-0  training    step 120", "worker-1  starting"]


def test_colors_have_no_width(pair, monkeypatch):
    pair.console.ended(TWO[1], "lost", "was killed by SIGKILL")
    monkeypatch.setenv("COLUMNS", "30")
    assert pair.wait(1).screen(colors=True)[1] == "<31>worker-1  lost        was ki<0>…"


@pytest.mark.parametrize("columns", [30, 90, 300])
def test_a_change_of_the_windows_size_is_survived(pair, monkeypatch, columns):
    before = pair.show(**MESSAGE).wait(0.25).show(kind="line", text="a line").take()
    assert screen_of(before, 200) == ["a line", BAR, "worker-0  training    step 120", "worker-1  starting"]
    monkeypatch.setenv("COLUMNS", str(columns))
    after = pair.show(**{**MESSAGE, "step": 180}).wait(0.25).take()
    # As terminals wrap what they show already when they become narrower.
    wrapped = Emulator(columns).feed("\n".join(screen_of(before, 200)) + "\n").feed(after).lines
    assert [wrapped[0], *(line[:12] for line in wrapped[1:])] == ["a line", "[########...", "worker-0  tr", "worker-1  st"]


def test_a_low_window_shows_the_first_lines(monkeypatch, pair):
    monkeypatch.setenv("LINES", "3")
    assert pair.show(**MESSAGE).screen() == [BAR, "worker-0  training    step 120"]


def test_what_the_terminal_shows_of_ctrl_c_is_removed(pair):
    pair.show(**MESSAGE)
    pair.out.write("^C")
    pair.show(kind="line", text="SIGINT: saving")
    assert pair.screen() == ["SIGINT: saving", BAR, "worker-0  training    step 120", "worker-1  starting"]


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


def test_errors_stand_above_too_and_nothing_is_left_at_the_end():
    shared = Terminal()
    shown = Shown(shared, TWO, shared).show(**MESSAGE).show(kind="crash", text="Traceback\nboom", cause="boom")
    above = ["Traceback", "boom", f"<31>error:<0> the worker crashed; the whole log is {LOG}"]
    assert shown.screen(colors=True) == [*above, BAR, "worker-0  training    step 120", "worker-1  starting"]
    shown.console.close()
    assert shown.screen(colors=True) == above


@pytest.mark.parametrize(("value", "begins"), [(None, "<33>warning:<0>"), ("", "<33>warning:<0>"), ("0", "warning:")])
def test_no_color_is_honoured_where_it_is_set_and_not_empty(monkeypatch, value, begins):
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    shown = Shown(Terminal()).show(kind="line", text="warning: slow").show(**MESSAGE)
    assert shown.screen(colors=True) == [f"{begins} slow", BAR]


def test_errors_in_a_file_have_no_color():
    shown = Shown(Terminal(), err=io.StringIO())
    shown.console.error("gave up")
    assert shown.err.getvalue() == "error: gave up\n"


def test_progress_leaves_out_what_is_not_known_yet():
    assert progress_text({"step": 1, "total": 9, "rate": 0.0, "secs_left": None, "metrics": {}}) == "1/9"
    assert progress_text(MESSAGE) == TEXT


NOISE = ("tensorflow", "WARNING", "I0000", "E0000", "cuda", "oneDNN", "Keras", "grpc")


@pytest.mark.slow
def test_a_real_run_of_two_processes_is_seen_live_and_leaves_its_lines(tmp_path):
    options = [*SMALL, "strategy=multi_worker", "fault=kill_worker_1_at_50", "train.steps=56", "checkpoint.every_steps=25"]
    command = [sys.executable, str(ROOT / "train.py"), *options, "restart.backoff_secs=0.5"]
    shown = set()
    code, text = in_terminal(command, tmp_path, TIMEOUT_SECS, columns=100, seen=lambda text: shown.update(live(text)))
    assert code == 0, text
    does = {" ".join(line.split()[:2]) for line in shown}
    assert {f"worker-{index} {word}" for index in (0, 1) for word in ("starting", "compiling", "restarting")} <= does
    assert "worker-1  lost        was killed by SIGKILL" in shown
    assert any(line.startswith("[######") and "/56  " in line and "examples/s" in line for line in shown)
    left = screen_of(text, 100, colors=True)
    assert left[0] == "Number of devices: 2"
    assert "fault kill_worker_1_at_50: worker-1 is killed at step 50" in left
    assert [line.split("; ")[0] for line in left if "<" in line] == ["<33>warning:<0> worker-1 was killed by SIGKILL", left[-3]]
    assert left[-3].startswith("<32>Done:<0> step 56, ")
    assert left[-1].startswith("Run directory: runs/cnn-digits-")
    assert not [word for word in NOISE if word in text]


@pytest.mark.slow
def test_ctrl_c_leaves_a_clean_terminal(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, "train.steps=1000000"]
    code, text = in_terminal(command, tmp_path, TIMEOUT_SECS, columns=100, interrupt=lambda text: "examples/s" in text, NO_COLOR="1")
    assert code == 130, text
    *_, asked, stopped, path = screen_of(text, 100, colors=True)
    assert asked == "SIGINT: saving, then leaving; once more leaves at once."
    assert stopped == "Stopped after saving; the same command continues."
    assert path.startswith("Run directory: ")
    assert "\x1b[3" not in text


def live(text):
    """Gives what a terminal shows when this has been written; nothing while a drawing is under way."""
    try:
        return screen_of(text, 100)
    except AssertionError:
        return []
