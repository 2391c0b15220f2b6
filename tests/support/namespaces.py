"""Namespaces of this machine for tests: nothing of them is seen outside, and nothing remains."""

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest


class Namespaces:
    """User, mount and perhaps network namespaces that end with this process.

    Attributes:
        enter: a command that runs another one in them.
        root: their root directory, as this process reaches it.
    """

    def __init__(self, script, *arguments, has_network):
        kinds = ["--user", "--mount", *(["--net"] if has_network else [])]
        command = ["sh", "-c", f"set -e\n{script}\necho ready\nexec cat", "sh", *arguments]
        self._holder = subprocess.Popen(
            ["unshare", "--map-root-user", *kinds, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        pid = self._holder.pid
        self.enter = ["nsenter", f"--target={pid}", *kinds, "--preserve-credentials"]
        self.root = Path(f"/proc/{pid}/root")
        self._programs = []

    def refusal(self):
        """Wait until the script has run; return why it has not."""
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        is_ready = self._holder.stdout.readline() == "ready\n"
        return None if is_ready else self._holder.stderr.read().strip()

    def start(self, *command, environment):
        """Start a program in them, which ends with them."""
        process = subprocess.Popen(
            [*self.enter, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._programs.append(process)
        return process

    def close(self):
        """End what is left."""
        for process in (*self._programs, self._holder):
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=60)


@contextmanager
def namespaces(script, *arguments, has_network=True):
    """Yield namespaces in which a shell script has run; skip the test where that is forbidden."""
    programs = ["unshare", "nsenter", "mount", *(["ip"] if has_network else [])]
    if missing := [name for name in programs if shutil.which(name) is None]:
        pytest.skip(f"no {missing[0]} here")
    own = Namespaces(script, *arguments, has_network=has_network)
    try:
        if (reason := own.refusal()) is not None:
            pytest.skip(f"no namespaces are allowed here: {reason}")
        yield own
    finally:
        own.close()
