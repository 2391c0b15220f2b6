"""mode=predict: what the model says of each example, in a table; killed at any moment, the same command goes on where its rows end.

First all rows, as numbers, then the table of them: so that it does not depend on where it was interrupted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer import formats
from trainer.channel import Channel
from trainer.engine import Engine
from trainer.errors import ConfigError
from trainer.files import write_atomically, writing
from trainer.outputs import Outputs
from trainer.predictions import Table, images_in, name_of, table_of
from trainer.rows import Rows, columns_of
from trainer.schema import Experiment
from trainer.turns import Stopped


def predict(experiment: Experiment, engine: Engine, run_dir: Path, channel: Channel, step: int, stop: Callable[[], bool]) -> bool:
    """Predicts with the checkpoint of `step`, which has been restored; the chief writes the table.

    Returns:
        Whether the table is finished; if not, a stop was requested.

    Raises:
        ConfigError: the task predicts nothing.
        StorageError: the table could not be written.
    """
    outputs = engine.outputs
    if outputs is None:
        raise ConfigError(f"mode (predict) needs a task with predict_step; {type(engine.state.task).__name__} has none")
    desk = Desk(table_of(experiment, run_dir, step), outputs, channel) if engine.peers.is_chief else None
    (start,) = engine.peers.chiefs(desk.count if desk else 0)
    try:
        for rows in outputs.each(start, stop, lambda phase: channel.phase(phase, step)):
            if desk:
                desk.append(rows)
        channel.phase("save", step)
        _together(engine, channel, stop, desk.write(experiment, outputs.class_names) if desk else iter(()))
    except Stopped:
        return False
    return True


def _together(engine: Engine, channel: Channel, stop: Callable[[], bool], work: Iterator[None]) -> None:
    """Lets all processes follow the chief's work, so that none takes it for a standstill."""
    while True:
        channel.beat()
        stopping, goes_on = engine.peers.sums(stop(), next(work, work) is None)
        if not goes_on:
            return
        if stopping:
            raise Stopped


class Desk:
    """Where the chief puts the rows down, and makes the table of them.

    Args:
        table: the table.
        outputs: what predicts.
        channel: tells the user.
    """

    def __init__(self, table: Table, outputs: Outputs, channel: Channel) -> None:
        self._table, self._channel, self._num_examples = table, channel, outputs.num_examples
        self._about = {"made_of": table.made_of, "rows": outputs.num_examples, "batch_size": outputs.batch_size}
        self._began, self._start = time.monotonic(), 0
        self._rows: Rows | None = None
        record = table.recorded()
        if {**record, "columns": None} == {**self._about, "columns": None} and table.rows.exists():
            self._rows = Rows(table.rows, record["columns"])
            self._start = self._rows.count
            channel.line(f"Continuing after {self._start} of {self._num_examples} rows.")

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._rows.count if self._rows else 0

    def append(self, values: dict[str, np.ndarray]) -> None:
        """Puts rows down, in the order of the split."""
        values = {name: value for name, value in values.items() if name != "id"}
        if self._rows is None:
            self._rows = self._begin(columns_of(values))
        self._rows.append(values)
        done, secs = self._rows.count, time.monotonic() - self._began
        rate = (done - self._start) / secs
        self._channel.progress(done, self._num_examples, rate, (self._num_examples - done) / rate, {})

    def write(self, experiment: Experiment, class_names: Sequence[str]) -> Iterator[None]:
        """Makes the table; yields now and then. The rows are not needed any more then, and are removed."""
        assert self._rows is not None, "there is at least one example"
        rows, options = self._rows, experiment.predict
        ids: Any = range(rows.count) if options.images is None else [name_of(path, options.images) for path in images_in(options.images)]
        unread = 0

        def blocks(numbers: int) -> Iterator[dict[str, formats.Column]]:
            nonlocal unread
            done = 0
            for block in rows.blocks(numbers):
                yield formats.columns(block, ids[done : done + len(block)], class_names)
                done, unread = done + len(block), unread + int((block["weight"] == 0).sum())

        yield from formats.write(options.format, self._table.path, blocks)
        if unread:
            self._channel.line(f"warning: {unread} of {rows.count} examples could not be read; what is predicted of them is empty.")
        rows.close()
        self._table.rows.unlink()

    def _begin(self, columns: Any) -> Rows:
        with writing(self._table.path):
            self._table.path.parent.mkdir(parents=True, exist_ok=True)
            # In this order: rows must never be taken for those of another table.
            self._table.rows.unlink(missing_ok=True)
        write_atomically(self._table.record, json.dumps({**self._about, "columns": columns}, indent=1))
        return Rows(self._table.rows, columns)
