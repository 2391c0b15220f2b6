"""The process of one point, seen from the sweep's driver. No TensorFlow."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from trainer import cluster, config
from trainer.sweep.points import Point
from trainer.sweep.slots import Slot

_NOT_RECORDED = ("sweep", "search", "hydra")


class PointProcess:
    """A process of `trainer.sweep.point_run`, which runs one point as its own command would, and dies with this one.

    Args:
        point: what it runs.
        slot: what it may use.
        config_dir: the user's own folder of choices, for the record.
        messages: receives each message that it sends, see `trainer.channel`, and finally {"kind": "exit", "code": ..., "text": ...}, each
            with "from": the point's number.
    """

    def __init__(self, point: Point, slot: Slot, config_dir: str | None, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
        self.point, self.slot, self._messages = point, slot, messages
        self._socket, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - of a process that fails without a message
        # A session of its own: Ctrl-C in the terminal reaches the driver alone, which passes it on once.
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trainer.sweep.point_run", str(theirs.fileno()), ",".join(map(str, slot.cores))],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=cluster.point_environment(slot.threads, slot.gpus),
            )
        assignment = {
            "argv": sys.argv,
            "experiment": config.plain(point.experiment),
            "overrides": recorded(point.overrides),
            "config_dir": config_dir,
        }
        self._send(json.dumps(assignment))
        threading.Thread(target=self._listen, daemon=True).start()

    def request(self, number: int) -> None:
        """Passes on what a signal asks for."""
        self._send(f"signal {int(number)}")

    def kill(self) -> None:
        """Ends the process at once, and with it its workers."""
        self._process.kill()
        self._process.wait()

    def _send(self, line: str) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(f"{line}\n".encode())

    def _listen(self) -> None:
        with suppress(ConnectionResetError), self._socket.makefile(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("}\n"):
                    self._tell(json.loads(line))
        code = self._process.wait()
        self._socket.close()
        # Read from its beginning without moving the position that the process's own children may still write at.
        said = os.pread(self._said.fileno(), 1_000_000, 0).decode(errors="replace").strip()
        self._said.close()
        self._tell({"kind": "exit", "code": code, "text": said})

    def _tell(self, message: dict[str, Any]) -> None:
        self._messages.put({**message, "from": self.point.number})


def recorded(overrides: Sequence[str]) -> list[str]:
    """Gives the overrides that a point's own command has: without those that concern the sweep."""
    return [item for item in overrides if item.lstrip("+~").partition("=")[0].split(".")[0].split("/")[0] not in _NOT_RECORDED]
