"""The standard streams of a command: any text can be printed, also when nobody reads it."""

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT


def command(words, redirection="", prefix="", **env):
    """Run a command by the shell; return its exit code and the lines of its errors."""
    line = f"{prefix} {sys.executable} {ROOT / 'train.py'} {words} {redirection}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("redirection", [">&- <&-", "| head -1 > /dev/null"])
def test_command_needs_no_reader(redirection):
    assert command("--cfg job", redirection) == (0, [])


def test_full_disk_of_the_output_is_one_line():
    code, lines = command("--cfg job", "> /dev/full")
    assert code == 1
    assert lines == ["error: standard output could not be written: No space left on device"]


def test_text_outside_the_encoding_is_escaped():
    words = """--cfg job "runs_dir='größe'" | grep '^runs_dir: gr' > /dev/null"""
    assert command(words, PYTHONIOENCODING="ascii") == (0, [])


def test_removed_working_directory_is_one_line(tmp_path):
    gone = tmp_path / "gone"
    code, (line,) = command("--cfg job", prefix=f"mkdir {gone}; cd {gone}; rmdir {gone};")
    assert code == 2
    assert line.startswith("error: the working directory cannot be used: No such file")
