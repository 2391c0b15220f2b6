"""A small disk for a test: a real file system in a mount namespace, where the system allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import ROOT, finish

SABOTEUR = '''
import os, pathlib, shutil, subprocess

DONE = pathlib.Path("../done").absolute()
MOST_BYTES, MOST_INODES = 64 << 20, 1000


def require_small():
    """Refuse any disk but the small one of the test."""
    disk = os.statvfs(".")
    size = disk.f_frsize * disk.f_blocks
    is_small = size <= MOST_BYTES and 0 < disk.f_files <= MOST_INODES
    assert is_small, "this is not the small disk of the test"


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def full(run):
    """Fill the disk to the last byte."""
    with open("filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.tell() < MOST_BYTES and file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass


def no_inodes(run):
    """Use up all inodes."""
    os.mkdir("filler")
    try:
        for number in range(MOST_INODES):
            open(f"filler/{number}", "x").close()
    except OSError:
        pass


def read_only(run):
    """Make the run directory read-only for files opened from now on."""
    mount("--bind", run, run)
    mount("-o", "remount,bind,ro", run)


def removed(run):
    shutil.rmtree(run)


class Saboteur:
    """Does something to the disk at an evaluation, once."""

    def __init__(self, *, action: str, at: int) -> None:
        self.action = globals()[action]
        self.at = at

    def on_evaluate(self, step, metrics):
        if step == self.at and not DONE.exists():
            require_small()
            DONE.touch()
            (run,) = pathlib.Path("runs").iterdir()
            self.action(run)
            for number in range(2000):
                print(f"line {number} of what the user's code has to say")
        return False
'''


class SmallDisk:
    """A tmpfs that only the processes which are run here see at its path.

    Attributes:
        path: the directory, as this process reaches it.
        size: how many bytes it holds.
        inodes: how many files it holds.
    """

    def __init__(self, directory: Path, size: int, inodes: int) -> None:
        self.size, self.inodes = size, inodes
        self._mounted = directory / "disk"
        self._mounted.mkdir()
        mount = f"mount -t tmpfs -o size={size},nr_inodes={inodes} none '{self._mounted}'"
        command = f"{mount} && echo mounted && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != "mounted\n":
            pytest.skip(f"no file systems of one's own here: {self._holder.stderr.read().strip()}")
        self.path = Path(f"/proc/{self._holder.pid}/root{self._mounted}")
        # Below a mount that somehow is not there would be the disk of everyone.
        seen = self._finish(
            sys.executable,
            "-c",
            "import os; s = os.statvfs('.'); print(s.f_frsize * s.f_blocks, s.f_files)",
        )
        assert [int(number) for number in seen[1].split()] == [self.size, self.inodes], (
            f"not on the small disk: {seen}"
        )

    def run(self, *overrides: str) -> tuple[int, str, str]:
        """Run `train.py` to its end in the directory; return exit code, stdout and stderr."""
        return self._finish(sys.executable, str(ROOT / "train.py"), *overrides)

    def restore(self) -> None:
        """Undo what the saboteur has done, as far as that is possible."""
        for run in (self.path / "runs").iterdir() if (self.path / "runs").exists() else []:
            self._finish("umount", str(self._mounted / "runs" / run.name))
        if (filler := self.path / "filler").is_dir():
            shutil.rmtree(filler)
        else:
            filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Let the disk go."""
        self._holder.kill()
        self._holder.communicate()

    def _finish(self, *command: str) -> tuple[int, str, str]:
        # `cd` within: nsenter's own option would enter the directory below the mount.
        enter = ["sh", "-c", 'cd "$0" && exec "$@"', str(self._mounted)]
        within = [
            "nsenter",
            f"--target={self._holder.pid}",
            "--user",
            "--mount",
            "--preserve-credentials",
            *enter,
        ]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # every inode counts
        process = subprocess.Popen(
            [*within, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return finish(process)


@contextmanager
def small_disk(directory: Path, size: int = 4 << 20, inodes: int = 200) -> Iterator[SmallDisk]:
    """Yield a disk with the saboteur in its directory; skip the test where that is forbidden."""
    if missing := [name for name in ("unshare", "nsenter", "mount") if shutil.which(name) is None]:
        pytest.skip(f"no {missing[0]} here")
    disk = SmallDisk(directory, size, inodes)
    try:
        (disk.path / "saboteur.py").write_text(SABOTEUR)
        yield disk
    finally:
        disk.close()
