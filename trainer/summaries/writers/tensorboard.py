"""TensorBoard: events/train and events/eval in the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from trainer.files import writing
from trainer.summaries import figures
from trainer.summaries.writers.writer import Writer

_BUCKETS = 30


class TensorBoard(Writer):
    """Writes a folder of events for each split, from its first event on.

    Attributes:
        FOLDERS: the folder of each split.

    Args:
        run_dir: the run directory.
        position: events of later steps in older files are superseded; TensorBoard drops them.
    """

    FOLDERS: ClassVar = {"train": "train", "validation": "validation", "test": "eval"}

    network = None

    def __init__(self, run_dir: Path, position: int) -> None:
        self._folder = run_dir / "events"
        self._position = position
        self._files: dict[str, _EventFile] = {}

    def hyperparameters(self, values: Mapping[str, bool | int | float | str]) -> None:
        # The HParams tab takes the metrics from the folders beside the file. It has one session a
        # run: each attempt replaces the file of the one before.
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        with writing(self._folder):
            old_files = list(self._folder.glob("events.out.tfevents.*"))
            file = _EventFile(self._folder, self._position)
            file.add({"summary": hparams_pb(dict(values), trial_id=self._folder.parent.name)})
            file.close()
            for path in old_files:
                path.unlink(missing_ok=True)

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.plugins.scalar.summary import scalar_pb

        self._add(
            split,
            *({"step": step, "summary": scalar_pb(name, value)} for name, value in values.items()),
        )

    def images(self, split: str, step: int, name: str, images: np.ndarray) -> None:
        from tensorboard.plugins.image.metadata import create_summary_metadata

        height, width = images.shape[1:3]
        pixels = [str(width).encode(), str(height).encode(), *map(figures.png, images)]
        metadata = create_summary_metadata(
            display_name=name, description="", converted_to_tensor=True
        )
        self._tensor(split, step, name, np.array(pixels, dtype=object), metadata)

    def histogram(self, split: str, step: int, name: str, values: np.ndarray) -> None:
        from tensorboard.plugins.histogram.metadata import create_summary_metadata

        values = np.asarray(values, np.float64)
        counts, edges = np.histogram(values[np.isfinite(values)], _BUCKETS)
        buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
        self._tensor(
            split, step, name, buckets, create_summary_metadata(display_name=name, description="")
        )

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
        self._tensor(split, step, name, np.array(encoded, dtype=object), metadata)

    def graph(self, graph_def: bytes) -> None:
        self._add("train", {"graph_def": graph_def})

    def _tensor(self, split: str, step: int, name: str, content: np.ndarray, metadata: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.util.tensor_util import make_tensor_proto

        value = Summary.Value(tag=name, metadata=metadata, tensor=make_tensor_proto(content))
        self._add(split, {"step": step, "summary": Summary(value=[value])})

    def _add(self, split: str, *events: dict[str, Any]) -> None:
        with writing(self._folder):
            if split not in self._files:
                self._files[split] = _EventFile(self._folder / self.FOLDERS[split], self._position)
            self._files[split].add(*events)

    def flush(self) -> None:
        with writing(self._folder):
            for file in self._files.values():
                file.sync()

    def close(self) -> None:
        with writing(self._folder):
            for file in self._files.values():
                file.close()


class _EventFile:
    """A file of events after a step.

    Args:
        folder: its folder.
        position: events of later steps in the older files of the folder are superseded.
    """

    def __init__(self, folder: Path, position: int) -> None:
        # Imported here: the package is slow to import, and a run may have no such writer.
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        self._file: BinaryIO = (folder / f"events.out.tfevents.{time.time_ns()}").open("xb")
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
        """Append events; an open TensorBoard can read them at once."""
        for content in events:
            self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._file.flush()

    def sync(self) -> None:
        """Flush all events to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush all events to the disk and close the file."""
        with self._file:
            self.sync()
