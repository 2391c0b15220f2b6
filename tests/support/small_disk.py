"""Small disks for tests: real file systems in a mount namespace, where the system allows it."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fork_server import fork_server_of
from tests.support.namespaces import namespaces
from tests.support.processes import ROOT, finish

SABOTEUR = '''
import os, pathlib, shutil

DONE = pathlib.Path("../done").absolute()
MOST_BYTES, MOST_INODES = 64 << 20, 1000


def require_small():
    """Refuse any disk but the small one of the test."""
    disk = os.statvfs(".")
    size = disk.f_frsize * disk.f_blocks
    is_small = size <= MOST_BYTES and 0 < disk.f_files <= MOST_INODES
    assert is_small, "this is not the small disk of the test"


def full(run):
    """Fill the disk to the last byte."""
    with open("filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.tell() < MOST_BYTES and file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass


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


class Mounts:
    """A mount namespace of the tests, with a fork server for the commands in it.

    Attributes:
        root: its root directory, as this process reaches it.
    """

    def __init__(self, own, variables):
        self.root = own.root
        self._own = own
        self._variables = variables

    def run(self, directory, *command):
        """Run a command to its end; return exit code, stdout and stderr."""
        # `cd` within: nsenter's own option would enter the directory below a mount.
        change = ["sh", "-c", 'cd "$0" && exec "$@"', str(directory)]
        environment = {**os.environ, **self._variables}
        return finish(self._own.start(*change, *command, environment=environment))


@contextmanager
def own_mounts():
    """Yield a mount namespace; skip the test where that is forbidden."""
    no_bytecode = "PYTHONDONTWRITEBYTECODE"  # every inode counts
    with namespaces("", has_network=False) as own:
        with fork_server_of(ROOT, [*own.enter, "env", f"{no_bytecode}=1"]) as server:
            yield Mounts(own, {no_bytecode: "1", **server})


class SmallDisk:
    """A tmpfs that only the processes which are run here see at its path.

    Attributes:
        path: the directory, as this process reaches it.
    """

    def __init__(self, mounts, directory, size, inodes):
        self._mounts = mounts
        self._mounted = directory / "disk"
        self._mounted.mkdir()
        options = f"size={size},nr_inodes={inodes}"
        code, _, err = mounts.run(
            directory, "mount", "-t", "tmpfs", "-o", options, "none", str(self._mounted)
        )
        if code:
            pytest.skip(f"no mounts are allowed here: {err.strip()}")
        self.path = Path(f"{mounts.root}{self._mounted}")
        # Below a mount that somehow is not there would be the disk of everyone.
        seen = os.statvfs(self.path)
        assert (seen.f_frsize * seen.f_blocks, seen.f_files) == (size, inodes), (
            f"not on the small disk: {seen}"
        )

    def run(self, *overrides):
        """Run `train.py` to its end in the directory; return exit code, stdout and stderr."""
        return self._mounts.run(self._mounted, sys.executable, str(ROOT / "train.py"), *overrides)

    def restore(self):
        """Undo what the saboteur has done, as far as that is possible."""
        (self.path / "filler").unlink(missing_ok=True)

    def close(self):
        """Let the disk go."""
        self._mounts.run(self._mounted.parent, "umount", "--lazy", str(self._mounted))


@contextmanager
def small_disk(mounts, directory, size=4 << 20, inodes=200):
    """Yield a disk with the saboteur in its directory; skip the test where that is forbidden."""
    disk = SmallDisk(mounts, directory, size, inodes)
    try:
        (disk.path / "saboteur.py").write_text(SABOTEUR)
        yield disk
    finally:
        disk.close()
