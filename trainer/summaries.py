"""Where metrics go while a run goes on. The chief alone writes; a writer never blocks a step."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from trainer.files import write_atomically, writing


class Writer(Protocol):
    """Receives scalars. Made when the run's position is known: what an earlier attempt wrote past it does not count."""

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Writes the metrics of a split (`train` or `test`) after `step` updates."""

    def flush(self) -> None:
        """Brings what was written so far to the file."""

    def close(self) -> None:
        """Brings everything to the disk."""


class JsonLines:
    """metrics.jsonl: one object a line.

    Args:
        run_dir: the run directory.
        position: lines of later steps are removed: they will be written again, and none may stand there twice.
        name: the file's name; each file has one process that writes.
    """

    def __init__(self, run_dir: Path, position: int, name: str = "metrics.jsonl") -> None:
        self._path = run_dir / name
        if self._path.exists():
            keep = [line for line in self._path.read_text().splitlines() if _step(line) <= position]
            write_atomically(self._path, "".join(f"{line}\n" for line in keep))
        with writing(self._path):
            self._file = self._path.open("a", buffering=1, encoding="utf-8")

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        with writing(self._path):
            self._file.write(json.dumps({"step": step, "split": split, **values}) + "\n")

    def flush(self) -> None:
        with writing(self._path):
            self._file.flush()

    def close(self) -> None:
        with writing(self._path):
            self._file.close()


class TensorBoard:
    """events/train and events/eval, written by a thread of their own, each from its first metrics on.

    Args:
        run_dir: the run directory.
        position: events of later steps in older files are superseded; TensorBoard drops them when it reads on.
    """

    FOLDERS: ClassVar = {"train": "train", "test": "eval"}

    def __init__(self, run_dir: Path, position: int) -> None:
        # Imported here: the package is slow to import, and a run may have no such writer.
        import tensorflow as tf
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.scalar.summary import scalar_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._open, self._event, self._scalar_pb = EventFileWriter, event_pb2.Event, scalar_pb
        self._start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._run_dir, self._position = run_dir, position
        self._writers: dict[str, Any] = {}
        # Their thread's error comes out at whatever is called next.
        self._writing = partial(writing, run_dir / "events", tf.errors.OpError)

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        with self._writing():
            if split not in self._writers:
                self._writers[split] = self._open(str(self._run_dir / "events" / self.FOLDERS[split]), flush_secs=5)
                # From the beginning: TensorBoard takes the first of these in a run for its start, and only later ones for a restart.
                self._add(split, self._position + 1, session_log=self._start)
            for name, value in values.items():
                self._add(split, step, summary=self._scalar_pb(name, value))

    def flush(self) -> None:
        for writer in self._writers.values():
            with self._writing():
                writer.flush()

    def _add(self, split: str, step: int, **content: Any) -> None:
        self._writers[split].add_event(self._event(wall_time=time.time(), step=step, **content))

    def close(self) -> None:
        for writer in self._writers.values():
            with self._writing():
                writer.close()


def open_writers(names: list[str], run_dir: Path, position: int) -> list[Writer]:
    """Opens the configured writers at a position, the number of updates already reported."""
    known: dict[str, type] = {"jsonl": JsonLines, "tensorboard": TensorBoard}
    return [known[name](run_dir, position) for name in names]


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        # The last line of a killed process may be cut off.
        return float("inf")
