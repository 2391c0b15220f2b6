"""Writes snapshots in memory to files: another process does, where there is one.

That process reads the memory itself, so nothing is copied here and no Python of this process waits.
The two speak in lines of JSON over a socket: a `Request`, and its answer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.engine.checkpoints.snapshot import write_files
from trainer.runs.checkpoint_marker import WrittenFiles
from trainer.runs.state_memory import Header, StateMemory
from trainer.text import first_line


class FileWriter:
    """Has snapshots in the memory of this process written to files.

    Args:
        connection: to the process that writes them (`serve`); None: this process does.
    """

    def __init__(self, connection: socket.socket | None = None) -> None:
        self._lines = None if connection is None else connection.makefile("rw", encoding="utf-8")

    def write(
        self, memory: StateMemory, header: Header, directory: Path, step: int
    ) -> WrittenFiles:
        """Write a snapshot to the files of the checkpoint of a step.

        Raises:
            OSError: they could not be written.
            tf.errors.OpError: likewise.
        """
        request: dict[str, Any] = {"slot": header.slot, "directory": str(directory), "step": step}
        if self._lines is None or (answer := self._ask(request)) is None:
            return _write(memory, **request)
        if problem := answer.get("problem"):
            raise OSError(problem)
        return WrittenFiles(**answer)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer of the other process; None: it has ended, and is not asked again."""
        assert self._lines is not None
        try:
            self._lines.write(f"{json.dumps(request)}\n")
            self._lines.flush()
            if line := self._lines.readline():
                answer: dict[str, Any] = json.loads(line)
                return answer
        except (OSError, ValueError):
            pass
        self._lines = None
        return None


@dataclass(frozen=True)
class KeptSnapshot:
    """A snapshot in memory, which is held there until it is written.

    Attributes:
        memory: where it is.
        header: which one it is.
        writer: writes it.
    """

    memory: StateMemory
    header: Header
    writer: FileWriter

    def __post_init__(self) -> None:
        self.memory.hold(self.header)

    def write_files(self, directory: Path, step: int) -> WrittenFiles:
        """Write the files of the checkpoint of a step; see `Snapshot.write_files`."""
        try:
            return self.writer.write(self.memory, self.header, directory, step)
        finally:
            self.memory.hold(None)


def serve(
    connection: socket.socket,
    memory: StateMemory,
    call: Callable[[Callable[[], WrittenFiles]], WrittenFiles] = lambda function: function(),
) -> None:
    """Write what the other end asks for, until it ends.

    Args:
        connection: to a `FileWriter`.
        memory: where its snapshots are.
        call: calls a function, and returns what that returns.
    """
    with connection.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            try:
                request = partial(_write, memory, **json.loads(line))
                answer: dict[str, Any] = call(request)._asdict()
            except (OSError, tf.errors.OpError) as error:
                answer = {"problem": first_line(error)}
            lines.write(f"{json.dumps(answer)}\n")
            lines.flush()


def _write(memory: StateMemory, slot: int, directory: str, step: int) -> WrittenFiles:
    header = memory.header(slot)
    if header is None or (tensors := memory.read(header)) is None:
        raise OSError(f"the snapshot in slot {slot} of the memory does not verify")
    return write_files(tensors, Path(directory), step)
