"""The screen of a command: several threads, and texts of others."""

import io
import threading
from contextlib import suppress

from tests.support.terminal import Emulator, Terminal
from trainer.launch.display.terminal import Screen


class MeetingPlace(io.StringIO):
    """A stream in which two writers meet, if two can be there."""

    def __init__(self):
        super().__init__()
        self._barrier = threading.Barrier(2)
        self.has_met = False

    def write(self, text):
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(0.5)
            self.has_met = True
        return super().write(text)


def test_threads_write_one_after_the_other():
    out = MeetingPlace()
    screen = Screen(out, out)
    threads = [threading.Thread(target=screen.line, args=(text,)) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not out.has_met
    assert sorted(out.getvalue().splitlines()) == ["one", "two"]


def test_long_lines_are_divided_between_words_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("COLUMNS", "31")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    command = "Next: train.py mode=export resume=runs/a-long-name"
    text = f"error: {'x' * 40} must be >= 0; see the-page"
    for out in (Terminal(), io.StringIO()):
        screen = Screen(out, out)
        screen.draw(["[###...]"])
        screen.line(command)
        screen.line("step 1  test 0.5  best")
        screen.error(text)
        screen.line("y" * 40 + " of the user", is_whole=True)
        screen.clear()
        if out.isatty():
            assert Emulator(31, colors=True).feed(out.getvalue()).lines == [
                "Next: train.py mode=export",
                "      resume=runs/a-long-name",
                "step 1  test 0.5<32>  best<0>",
                "<31>error:<0>",
                f"      {'x' * 25}",
                f"{'x' * 15}",
                "      must be >= 0; see",
                "      the-page",
                "y" * 31,
                f"{'y' * 9} of the user",
            ]
        else:
            assert out.getvalue().splitlines()[0] == command
            assert text in out.getvalue()


def test_screen_escapes_what_is_not_its_own(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    screen = Screen(out, out)
    screen.line("Done: \x1b]0;title\x07 \x1b[31mred\r")
    screen.error("error: first\n\tsecond\x9b2J")
    screen.draw([f"a\x1b[2Jb {screen.paint('c', 'red')}\nd"])
    lines = out.getvalue().split("\n")
    assert lines[0].endswith("Done:\x1b[0m \\x1b]0;title\\x07 \\x1b[31mred\\r")
    assert lines[1].endswith("error:\x1b[0m first")
    assert lines[2] == "        second\\x9b2J"
    assert lines[3].endswith("a\\x1b[2Jb \x1b[31mc\x1b[0m\\nd")
