"""The screen of a command whose reader has gone."""

import os

from trainer.launch.terminal import Screen


def test_screen_goes_on_without_a_reader():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        screen = Screen(out, out)
        os.close(reading)
        screen.line("one")
        screen.error("two")
        assert os.stat(out.fileno()).st_rdev == os.stat(os.devnull).st_rdev
