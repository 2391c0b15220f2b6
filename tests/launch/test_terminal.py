"""The screen of a command whose reader has gone."""

import io
import os
import threading
from contextlib import suppress

from trainer.launch.terminal import Screen


def test_screen_goes_on_without_a_reader():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        screen = Screen(out, out)
        os.close(reading)
        screen.line("one")
        screen.error("two")
        assert os.stat(out.fileno()).st_rdev == os.stat(os.devnull).st_rdev


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
