"""mode=predict: a table of what the model predicts for each example.

First come all rows, as numbers, then the table, which therefore does not depend on interruptions:
after a kill at any moment, the same command continues where the rows end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.engine.evaluation.evaluator import Predictor
from trainer.engine.pacing import Stopped
from trainer.errors import ConfigError
from trainer.files import regular_file, write_atomically, write_json, writing
from trainer.protocols import DatasetDefaults, with_defaults
from trainer.runs.prediction_table import find_images, image_id, requested_table
from trainer.summaries import figures
from trainer.worker.predict import table_formats
from trainer.worker.training import TrainingRun

Columns = Sequence[Sequence[Any]]
"""Name, NumPy's name of the type, and shape of each value in a row; can be written as JSON."""


def predict(run: TrainingRun, step: int, stop: Callable[[], bool]) -> bool:
    """Predict with the restored checkpoint of `step`; return False if a stop was requested.

    The chief writes the table.

    Raises:
        ConfigError: the task has no `predict_step`.
        StorageError: the table could not be written.
    """
    predictor = run.engine.predictor
    if predictor is None:
        raise ConfigError(
            f"mode (predict) needs a task with predict_step; {type(run.task).__name__} has none"
        )
    writer = PredictionWriter(run, predictor, step) if run.group.is_chief else None
    (start,) = run.group.broadcast_from_chief(writer.count if writer else 0)
    try:
        for rows in predictor.predict(start, stop, lambda phase: run.channel.phase(phase, step)):
            if writer:
                writer.append(rows)
        run.channel.phase("save", step)
        _follow_chief(run, stop, writer.write() if writer else iter(()))
    except Stopped:
        return False
    return True


def _follow_chief(run: TrainingRun, stop: Callable[[], bool], work: Iterator[None]) -> None:
    """Run the chief's work while the other processes wait for each of its parts.

    So no process is taken for hung, and all of them stop at the same part.
    """
    while True:
        run.channel.beat()
        num_stopping, num_working = run.group.all_reduce_sum(stop(), next(work, work) is None)
        if not num_working:
            return
        if num_stopping:
            raise Stopped


class PredictionWriter:
    """Keeps the predicted rows in a file, and writes the table from it."""

    def __init__(self, run: TrainingRun, predictor: Predictor, step: int) -> None:
        self._run = run
        self._predictor = predictor
        self._table = table = requested_table(run.experiment, run.run_dir, step)
        self._num_examples = predictor.num_examples
        self._header = {
            "inputs": table.inputs,
            "rows": predictor.num_examples,
            "batch_size": predictor.source.per_replica,
        }
        self._began = time.monotonic()
        self._start = 0
        self._rows: RowFile | None = None
        record = table.recorded()
        is_same_table = {**record, "columns": None} == {**self._header, "columns": None}
        if is_same_table and table.rows.exists():
            self._rows = RowFile(table.rows, record["columns"])
            self._start = self._rows.count
            run.channel.line(f"Continuing after {self._start} of {self._num_examples} rows.")

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._rows.count if self._rows else 0

    def append(self, values: dict[str, np.ndarray]) -> None:
        """Append rows, name -> [n, ...], in the order of the split."""
        values = {name: value for name, value in values.items() if name != "id"}
        if self._rows is None:
            columns = [[name, x.dtype.str, list(x.shape[1:])] for name, x in values.items()]
            self._rows = self._create_rows(columns)
        self._rows.append(values)
        done = self._rows.count
        secs = time.monotonic() - self._began
        rate = (done - self._start) / secs
        self._run.channel.progress(
            done, self._num_examples, rate, (self._num_examples - done) / rate, {}
        )

    def write(self) -> Iterator[None]:
        """Write the table and remove the rows; yield after each block."""
        assert self._rows is not None, "there is at least one example"
        rows = self._rows.read()
        options = self._run.experiment.predict
        decode = self._predictor.decode
        class_names = with_defaults(self._run.dataset, DatasetDefaults).class_names or ()
        ids: Any = (
            range(len(rows))
            if options.images is None
            else [image_id(path, options.images) for path in find_images(options.images)]
        )

        def blocks(numbers: int) -> Iterator[dict[str, table_formats.Column]]:
            size = max(1, numbers // sum(rows[name][0].size for name in rows.dtype.names or ()))
            for start in range(0, len(rows), size):
                block, own = rows[start : start + size], ids[start : start + size]
                if decode is not None:
                    yield table_formats.text_columns(block, own, decode)
                else:
                    paths = write_images(self._table.path, block, own)
                    yield table_formats.columns(block, own, class_names, paths)

        yield from table_formats.write(options.format, self._table.path, blocks)
        if unreadable := int((rows["weight"] == 0).sum()):
            self._run.channel.line(
                f"warning: {unreadable} of {len(rows)} examples could not be read; "
                "their predictions are empty."
            )
        self._rows.file.close()
        self._table.rows.unlink()

    def _create_rows(self, columns: Any) -> RowFile:
        with writing(self._table.path):
            self._table.path.parent.mkdir(parents=True, exist_ok=True)
            # Before the record: rows must never be taken for those of another table.
            self._table.rows.unlink(missing_ok=True)
        write_json(self._table.record, {**self._header, "columns": columns})
        return RowFile(self._table.rows, columns)


class RowFile:
    """Rows of a fixed size; a last row that a kill has cut off is removed."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self._path = path
        self._dtype = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in columns])
        with writing(path):
            self.file = open(path, "ab", opener=regular_file)  # noqa: SIM115
            self.count = self.file.tell() // self._dtype.itemsize
            self.file.truncate(self.count * self._dtype.itemsize)

    def append(self, values: Mapping[str, np.ndarray]) -> None:
        """Append rows, name -> [n, ...]; return when they are on the disk."""
        rows = np.empty(len(next(iter(values.values()))), self._dtype)
        for name, value in values.items():
            rows[name] = value
        with writing(self._path):
            self.file.write(rows.tobytes())
            self.file.flush()
            os.fsync(self.file.fileno())
        self.count += len(rows)

    def read(self) -> np.ndarray:
        """Return all rows in order, [count]; they stay on the disk until they are used."""
        return np.memmap(self._path, self._dtype, "r", shape=(self.count,))


def write_images(table: Path, rows: np.ndarray, ids: Sequence[Any]) -> dict[str, np.ndarray]:
    """Write each prediction that is a gray image of 8 bits as `<table>-<name>/<id>.png`.

    Args:
        table: the file of the table, in whose folder they are.
        rows: a structured array, [n]; of rows of weight 0 nothing is written.
        ids: of the examples, [n].

    Returns:
        The paths relative to the table's folder, name -> [n]; empty where there is no file.

    Raises:
        StorageError: one could not be written.
    """
    names = [x for x in rows.dtype.names or () if rows[x].dtype == np.uint8 and rows[x].ndim == 3]
    paths = {name: np.full(len(rows), "", object) for name in names}
    for name in names:
        for row in np.flatnonzero(rows["weight"] > 0).tolist():
            paths[name][row] = f"{table.stem}-{name}/{ids[row]}.png"
            path = table.parent / paths[name][row]
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, figures.png(rows[name][row]))
    return paths
