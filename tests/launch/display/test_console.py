"""The display of a run: plain lines, or on a terminal lines above a live view."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes import ROOT, TIMEOUT_SECS
from tests.support.terminal import Clock, Terminal, in_terminal, screen_of
from tests.support.training import SMALL
from trainer.cluster.messages import (
    Crash,
    Line,
    Opening,
    Output,
    Phase,
    Problem,
    Progress,
)
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Launch
from trainer.launch.display.console import Console, is_quiet

LOG = Path("runs/x/logs/worker-0.log")
PROGRESS = Progress(120, 360, 1519.6, 12.4, {"loss": 0.21129, "accuracy": 0.9375}, "11/30")
TEXT = "120/360  0:12 left  loss 0.2113  accuracy 0.9375  1,520 examples/s"
BAR = f"[{'#' * 8}{'.' * 16}] epoch 11/30  step {TEXT}"
ONE = [ProcessId("worker", 0)]
TWO = [*ONE, ProcessId("worker", 1)]


class ConsoleOnStrings:
    """A console that writes to strings, with a manual clock."""

    def __init__(self, out, process_ids=ONE, err=None):
        self.out = out
        self.err = err or io.StringIO()
        self.clock = Clock()
        self.console = Console(self.out, self.err, self.clock)
        for process_id in process_ids:
            self.console.begin(process_id)
        self.chief = process_ids[0]

    def show(self, message):
        """Show a message of the chief."""
        self.clock.now += 1.0
        if isinstance(message, Phase | Progress):
            self.console.update(self.chief, message)
        self.console.show(message, LOG)
        return self

    def update(self, process_id, phase, step=0, *, after=1.0):
        """Update a process."""
        self.clock.now += after
        self.console.update(process_id, Phase(phase, step))
        return self

    def wait(self, secs):
        """Let time pass as an attempt does, which refreshes when it is time."""
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
    return ConsoleOnStrings(io.StringIO())


@pytest.fixture
def terminal():
    return ConsoleOnStrings(Terminal())


@pytest.fixture
def pair():
    return ConsoleOnStrings(Terminal(), TWO)


def test_quiet_console_shows_warnings_and_errors_alone():
    out, err = Terminal(), Terminal()
    console = Console(out, err, is_quiet=True)
    for message in (Line("Done: step 4"), Output("print"), Line("warning: late")):
        console.show(message, Path("log"))
    console.error("wrong")
    assert "late" in out.getvalue()
    assert "Done" not in out.getvalue() + err.getvalue()
    assert "print" not in out.getvalue()
    assert "wrong" in err.getvalue()


@pytest.mark.parametrize(
    ("source", "index", "console", "quiet"),
    [
        ("Slurm", 1, "chief", True),
        ("Slurm", 0, "chief", False),
        ("Slurm", 1, "all", False),
        ("TF_CONFIG", 1, "chief", False),
    ],
)
def test_scheduled_processes_beside_the_chief_are_quiet(source, index, console, quiet):
    cluster = Cluster(ProcessId("worker", index), {}, source)
    assert is_quiet(cluster, Launch(console=console)) is quiet


def test_progress_without_a_terminal_is_a_line_every_30_seconds(plain):
    shown = []
    for second in range(100):
        plain.clock.now = 999.0 + second
        plain.show(replace(PROGRESS, step=second))
        if text := plain.take():
            shown.append((second, text))
    assert shown == [
        (second, "step " + TEXT.replace("120/", f"{second}/") + "\n") for second in (30, 60, 90)
    ]


def test_run_of_one_process_has_one_line_with_position_and_activity(terminal):
    for phase, line in (("start", "starting ..."), ("compile", "compiling ...")):
        assert terminal.show(Phase(phase, 0)).screen() == [line]
    assert terminal.show(PROGRESS).screen() == [BAR]
    assert terminal.show(Phase("evaluate", 120)).screen() == [
        BAR.replace("1,520 examples/s", "evaluating")
    ]
    assert terminal.show(Phase("train", 120)).screen() == [BAR]
    assert terminal.show(replace(PROGRESS, step=360)).screen() == [
        f"[{'#' * 24}] epoch 11/30  step {TEXT.replace('120/', '360/')}"
    ]
    terminal.console.begin(ONE[0])
    assert terminal.screen() == ["restarting ..."]


def test_each_of_several_processes_has_a_line_below_that_of_the_run(pair):
    assert pair.wait(1).screen() == ["worker-0  starting", "worker-1  starting"]
    pair.update(TWO[0], "join")
    assert pair.screen() == ["worker-0  waiting for worker-1", "worker-1  starting"]
    pair.update(TWO[1], "start").update(TWO[0], "compile").show(PROGRESS).update(
        TWO[1], "train", 119
    )
    assert pair.screen() == [
        BAR,
        "worker-0  training    step 120",
        "worker-1  training    step 119",
    ]


def test_silent_process_is_colored_in_phases_with_frequent_messages(pair):
    pair.update(TWO[0], "compile").update(TWO[1], "train", 7).wait(9)
    assert pair.screen(colors=True) == [
        "worker-0  compiling   for 0:10",
        "worker-1  training    step 7",
    ]
    pair.wait(75)
    assert pair.screen(colors=True) == [
        "worker-0  compiling   for 1:25",
        "<33>worker-1  training    step 7  no news for 1:24<0>",
    ]


def test_many_processes_are_counted_and_urgent_ones_are_listed():
    process_ids = [ProcessId("worker", index) for index in range(16)]
    shown = ConsoleOnStrings(Terminal(), process_ids)
    assert shown.wait(1).screen() == ["16 starting"]
    for process_id in process_ids:
        shown.update(process_id, "train", 50, after=0.0)
    shown.update(process_ids[7], "compile")
    assert shown.screen() == ["15 training, 1 compiling: worker-7"]
    for index in (1, 2, 3):
        shown.update(process_ids[index], "save")
    shown.console.end(process_ids[4], "lost", "was killed by SIGKILL")
    assert shown.wait(1).screen() == [
        "11 training, 3 saving, 1 lost: worker-4, 1 compiling: worker-7",
        "worker-4  lost        was killed by SIGKILL",
    ]
    assert len(shown.wait(60).screen()) == 8


def test_view_is_drawn_at_most_four_times_a_second_and_ends_up_to_date(pair):
    drawings = 0
    for turn in range(128):  # two seconds
        pair.update(TWO[turn % 2], "train", turn, after=1 / 64)
        drawings += bool(pair.take())
    assert drawings == 8
    pair.update(TWO[1], "save", 300, after=0.0).wait(0.3)
    assert "saving      step 300" in pair.take()


def test_echo_of_ctrl_c_is_removed(pair):
    pair.show(PROGRESS)
    pair.out.write("^C")
    pair.show(Line("SIGINT: saving"))
    assert pair.screen() == [
        "SIGINT: saving",
        BAR,
        "worker-0  training    step 120",
        "worker-1  starting",
    ]


def test_problems_are_one_line_each_on_standard_error():
    shown = ConsoleOnStrings(Terminal()).show(
        Problem(["seed (-1) must be >= 0", "dataset: no such file"])
    )
    assert shown.err.getvalue() == "error: seed (-1) must be >= 0\nerror: dataset: no such file\n"
    assert shown.take() == ""


def test_line_of_every_attempt_is_shown_once(plain):
    for text in ("cnn on digits, 2 CPUs", "cnn on digits, 2 CPUs", "cnn on digits, 1 CPU"):
        plain.show(Opening(text))
    assert plain.take() == "cnn on digits, 2 CPUs\ncnn on digits, 1 CPU\n"


def test_console_keeps_the_first_cause(plain):
    assert plain.console.cause == ""
    plain.show(Crash("Traceback ...", "ValueError: x")).console.error("gave up")
    assert plain.console.cause == "ValueError: x"
    assert ConsoleOnStrings(io.StringIO()).show(Problem(["one", "two"])).console.cause == "one"


@pytest.mark.parametrize(
    ("value", "begins"), [(None, "<33>warning:<0>"), ("", "<33>warning:<0>"), ("0", "warning:")]
)
def test_no_color_is_honored_if_set_and_not_empty(monkeypatch, value, begins):
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    shown = ConsoleOnStrings(Terminal()).show(Line("warning: slow")).show(PROGRESS)
    assert shown.screen(colors=True) == [f"{begins} slow", BAR]


NOISE = ("tensorflow", "WARNING", "I0000", "E0000", "cuda", "oneDNN", "Keras", "grpc")


@pytest.mark.slow
def test_real_run_of_two_processes_is_shown_live_and_leaves_its_lines(tmp_path):
    options = [
        *SMALL,
        "strategy=multi_worker",
        "fault=kill_worker_1_at_50",
        "train.steps=600",
        "checkpoint.every_steps=25",
    ]
    command = [sys.executable, str(ROOT / "train.py"), *options, "restart.backoff_secs=0.5"]
    shown = set()
    code, text = in_terminal(
        command, tmp_path, TIMEOUT_SECS, columns=100, seen=lambda text: shown.update(live(text))
    )
    assert code == 0, text
    does = {" ".join(line.split()[:2]) for line in shown}
    assert {
        f"worker-{index} {word}"
        for index in (0, 1)
        for word in ("starting", "compiling", "restarting")
    } <= does
    assert "worker-1  lost        was killed by SIGKILL" in shown
    assert any(
        line.startswith("[######") and "/600  " in line and "examples/s" in line for line in shown
    )
    left = screen_of(text, 100, colors=True)
    assert left[0].startswith("cnn (1,766 parameters) on digits, 2 processes x 1 CPU -> runs/cnn-")
    assert "fault kill_worker_1_at_50: worker-1 is killed at step 50" in left
    # The kill may cut the save of step 50 short, which the next attempt then tells.
    cut_short = [line for line in left if "skipped the checkpoint of step 50: " in line]
    assert [line.split("; ")[0] for line in left if "<" in line and line not in cut_short] == [
        "<33>warning:<0> worker-1 was killed by SIGKILL",
        *[line for line in left if line.endswith("<32>  best<0>")],
        next(line for line in left if line.startswith("<32>Done:<0> step 600, ")),
    ]
    assert left[-4].startswith("Run directory: runs/cnn-digits-")
    assert left[-1].endswith(f"mode=export resume={left[-4].removeprefix('Run directory: ')}")
    assert not [word for word in NOISE if word in text]


def live(text):
    """Return what a terminal shows; nothing within a drawing."""
    try:
        return screen_of(text, 100)
    except AssertionError:
        return []
