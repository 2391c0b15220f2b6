"""Records that are read in other processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.reading_sources import Absent, Bound, Broken, Deadly, OnceDeadly, Pictures, Told
from tests.support.toy_sources import everything
from trainer.datasets.indexed import indexed
from trainer.datasets.records.fields import Fields
from trainer.engine.graph.input.feed import Pipeline, SampleOrder, Source

ROOT = Path(__file__).resolve().parents[2]


def dataset(source: Any, test: Any = None, processes: int = 2, **fields: Any) -> Any:
    return indexed(
        train_source=source,
        test_source=test or source,
        processes=processes,
        fields=Fields(**fields),
    )


def batches(split: Any, count: int) -> list[dict[str, np.ndarray]]:
    """Return the first batches of training."""
    source = Source(split, 8, 1, SampleOrder(split.num_examples, seed=3))
    iterator = Pipeline(source, tf.distribute.get_strategy()).open(0)
    return [
        {name: tensor.numpy() for name, tensor in next(iterator)[0].items()} for _ in range(count)
    ]


def test_order_and_bits_are_those_of_one_process() -> None:
    sources = Pictures(32), Pictures(11)
    alone, shared = (dataset(*sources, processes=n, num_classes=3) for n in (0, 2))
    for expected, batch in zip(batches(alone.train, 8), batches(shared.train, 8), strict=True):
        assert expected.keys() == batch.keys()
        for name, values in expected.items():
            assert (values.dtype, values.tolist()) == (batch[name].dtype, batch[name].tolist())
    np.testing.assert_equal(everything(alone.test), everything(shared.test))


def test_records_are_read_in_other_processes_without_tensorflow() -> None:
    split = dataset(Told()).train
    batch = everything(split)
    indices, processes, with_tensorflow = batch["features"].T
    assert indices.tolist() == list(range(32))
    assert len(set(processes)) == 2
    assert os.getpid() not in processes
    assert not with_tensorflow.any()
    assert batch["label"].tolist() == [0.5 * index for index in range(32)]
    # A batch of fewer records than processes.
    assert split.fetch(tf.constant([7], tf.int64))["label"].numpy().tolist() == [3.5]


def test_lost_process_is_replaced(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    split = dataset(OnceDeadly(tmp_path)).train
    with caplog.at_level(logging.WARNING):
        assert everything(split)["features"][:, 0].tolist() == list(range(32))
    (line,) = caplog.messages
    assert "16 records of train_source was ended by signal 9; it is replaced" in line
    caplog.clear()
    processes = {int(number) for number in everything(split)["features"][:, 1]}
    os.kill(processes.pop(), signal.SIGKILL)
    with caplog.at_level(logging.WARNING):
        assert everything(split)["features"][:, 0].tolist() == list(range(32))
    assert len(caplog.messages) == 1


def test_signals_to_all_processes_do_not_end_them(caplog: pytest.LogCaptureFixture) -> None:
    split = dataset(Told()).train
    before = {int(number) for number in everything(split)["features"][:, 1]}
    for process in before:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(process, number)
    assert {int(number) for number in everything(split)["features"][:, 1]} == before
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Broken(), "test_source: record 5 cannot be read: checksum of block 7 differs"),
        (Deadly(), "test_source: the process that read record 5 was ended by signal 9, for the"),
        (Absent(), "the source cannot be copied to another process: RuntimeError: the server is"),
    ],
)
def test_a_wrong_record_is_named(
    source: Any, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data = dataset(Told(), source)
    with pytest.raises((tf.errors.OpError, ValueError), match=message):
        everything(data.test)
    if isinstance(source, Broken):
        log = capfd.readouterr().err
        assert "test_source: record 5 cannot be read\nTraceback" in log
        assert "reading_sources.py" in log


def test_source_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(ValueError, match=r"processes \(train_source, a Bound\) cannot be copied"):
        dataset(Bound())


_TRAINER = """
import sys
from pathlib import Path
import numpy as np
from tests.support.reading_sources import Endless
from trainer.datasets.records.fields import Fields, RecordReader
from trainer.datasets.records.reading_processes import ReadingProcesses
source = Endless(Path(sys.argv[1]))
layout = Fields().layout(source[0], "source")
reader = RecordReader(source=source, name="source", layout=layout, num_classes=1)
pool = ReadingProcesses([reader], 2)
pool.read(0, np.arange(2))
"""


def test_processes_end_with_the_one_that_trains(tmp_path: Path) -> None:
    path = tmp_path / "process"
    trainer = subprocess.Popen([sys.executable, "-c", _TRAINER, str(path)], cwd=ROOT)
    try:
        wait_for(path.exists)
    finally:
        trainer.kill()
        trainer.wait(30)
    reader = Path("/proc") / path.read_text()
    wait_for(lambda: not reader.exists() or "\nState:\tZ" in (reader / "status").read_text())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
