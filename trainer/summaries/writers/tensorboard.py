"""TensorBoard: `events/` in the run directory, one entry for each run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from trainer.files import writing
from trainer.runs.recorded_metrics import group_of
from trainer.summaries import figures
from trainer.summaries.writers.writer import Writer

_BUCKETS = 30


def scalar_tag(split: str, name: str) -> str:
    """Return the tag of a number: `metrics/loss/test`, or `time/goodput`.

    The curves of a metric on all splits are next to each other, because TensorBoard sorts tags.
    """
    group = group_of(name) if split == "train" else None
    return f"{group}/{name}" if group else f"metrics/{name}/{split}"


def _tag(split: str, name: str) -> str:
    """Return the tag of what is no number: `inputs`, or `samples/test`."""
    return name if split == "train" else f"{name}/{split}"


class TensorBoard(Writer):
    """Writes events; those of steps after `position` in older files are superseded.

    `FOLDER` is in the run directory; TensorBoard takes each folder as a separate run.
    """

    FOLDER: ClassVar = "events"
    network = None
    sidecar = "trainer.summaries.writers.tensorboard.EvaluatorEvents"

    def __init__(self, run_dir: Path, position: int) -> None:
        self._run = run_dir.name
        self._folder = run_dir / self.FOLDER
        self._position = position
        self._file: _EventFile | None = None

    def hyperparameters(self, values: Mapping[str, bool | int | float | str]) -> None:
        # Of several in a folder the HParams tab shows the first: so they have their own file,
        # and each attempt replaces that of the one before.
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        with writing(self._folder):
            old_files = list(self._folder.glob("events.out.tfevents.*.hparams"))
            file = _EventFile(self._folder, self._position, ".hparams")
            file.add({"summary": hparams_pb(dict(values), trial_id=self._run)})
            file.close()
            for path in old_files:
                path.unlink(missing_ok=True)

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        # The epoch of an evaluation is that of the training at the same step.
        shown = {n: value for n, value in values.items() if split == "train" or n != "epoch"}
        # One event for all, and no tensors: a fifth of the time of `scalar_pb` for each.
        numbers = [
            Summary.Value(tag=scalar_tag(split, name), simple_value=value)
            for name, value in shown.items()
        ]
        self._add({"step": step, "summary": Summary(value=numbers)})

    def images(self, split: str, step: int, name: str, images: np.ndarray) -> None:
        from tensorboard.plugins.image.metadata import create_summary_metadata

        height, width = images.shape[1:3]
        pixels = [str(width).encode(), str(height).encode(), *map(figures.png, images)]
        metadata = create_summary_metadata(
            display_name=name, description="", converted_to_tensor=True
        )
        tag = f"pictures/{_tag(split, name)}"  # after the metrics, for TensorBoard sorts groups
        self._tensor(step, tag, np.array(pixels, dtype=object), metadata)

    def histogram(self, split: str, step: int, name: str, values: np.ndarray) -> None:
        from tensorboard.plugins.histogram.metadata import create_summary_metadata

        values = np.asarray(values, np.float64)
        counts, edges = np.histogram(values[np.isfinite(values)], _BUCKETS)
        buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
        metadata = create_summary_metadata(display_name=name, description="")
        self._tensor(step, _tag(split, name), buckets, metadata)

    def texts(self, split: str, step: int, name: str, texts: Sequence[str]) -> None:
        # Indented: TensorBoard reads Markdown, and shows such lines as they are.
        blocks = ["\n".join(f"    {line}" for line in text.split("\n")) for text in texts]
        self._texts(split, step, name, blocks)

    def text(self, name: str, text: str) -> None:
        # At a step that is superseded when the run continues from here again.
        self._texts("train", self._position + 1, name, text)

    def _texts(self, split: str, step: int, name: str, texts: str | list[str]) -> None:
        from tensorboard.plugins.text.metadata import create_summary_metadata

        encoded = texts.encode() if isinstance(texts, str) else [text.encode() for text in texts]
        metadata = create_summary_metadata(display_name=name, description="")
        self._tensor(step, _tag(split, name), np.array(encoded, dtype=object), metadata)

    def graph(self, graph_def: bytes) -> None:
        self._add({"graph_def": graph_def})

    def _tensor(self, step: int, tag: str, content: np.ndarray, metadata: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.util.tensor_util import make_tensor_proto

        value = Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(content))
        self._add({"step": step, "summary": Summary(value=[value])})

    def _add(self, *events: dict[str, Any]) -> None:
        with writing(self._folder):
            if self._file is None:
                self._file = _EventFile(self._folder, self._position)
            self._file.add(*events)

    def flush(self) -> None:
        if self._file is not None:
            with writing(self._folder):
                self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            with writing(self._folder):
                self._file.close()


class EvaluatorEvents(TensorBoard):
    """Writes to its own folder: TensorBoard does not follow two writers in one."""

    FOLDER: ClassVar = "events/evaluator"


class _EventFile:
    """A file of events after a step."""

    def __init__(self, folder: Path, position: int, suffix: str = "") -> None:
        # Imported here: the package is slow to import, and a run may have no such writer.
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time_ns()}{suffix}"
        self._file: BinaryIO = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._event = event_pb2.Event
        # In the first file too: TensorBoard takes the first START of a run for its beginning, and
        # only later ones for a restart.
        start = {
            "step": position + 1,
            "session_log": event_pb2.SessionLog(status=event_pb2.SessionLog.START),
        }
        self.add({"file_version": "brain.Event:2"}, start)

    def add(self, *events: dict[str, Any]) -> None:
        for content in events:
            self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._file.flush()

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._file:
            self.sync()
