"""Records of any object by index, of memory-mapped arrays, and those read in other processes."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support import reading_sources
from tests.support.dataset_contract import check_dataset
from tests.support.reading_sources import Absent, Deadly, OnceDeadly, Pictures, Told
from tests.support.toy_sources import Batches, Records, everything, png, write_npy
from trainer.datasets.images.framing import Framing
from trainer.datasets.images.image_files import decode
from trainer.datasets.indexed import indexed
from trainer.datasets.npy import npy
from trainer.datasets.records.fields import Fields
from trainer.engine.graph.input.feed import Pipeline, SampleOrder, Source

ROOT = Path(__file__).resolve().parents[2]
COUNT = 8


def dataset(source, test=None, *, processes=0, **fields):
    """Open a source, or records that a function makes of their numbers."""
    if callable(source):
        source = Records([source(number) for number in range(COUNT)])
    return indexed(
        train_source=source,
        test_source=source if test is None else test,
        processes=processes,
        fields=Fields(**{"num_classes": 3, **fields}),
    )


def pixels(number):
    return np.full((4, 4, 1), number, np.uint8)


IMAGES = {
    "a mapping of arrays": lambda n: {"img": pixels(n), "target": n % 3},
    "a tuple": lambda n: (pixels(n), np.int32(n % 3)),
    "encoded": lambda n: {"image": png(n), "label": np.array([n % 3])},
    "a picture of Pillow": lambda n: (Image.fromarray(pixels(n)[..., 0]), n % 3),
    "as Hugging Face stores images": lambda n: ({"bytes": png(n), "path": None}, n % 3),
}


@pytest.mark.parametrize("make", IMAGES.values(), ids=IMAGES)
def test_images_of_every_kind_become_the_same_examples(make):
    data = dataset(make)
    assert (data.input_shape, data.num_classes, data.train.in_memory) == ((4, 4, 1), 3, False)
    batch = everything(data.train)
    np.testing.assert_array_equal(batch["features"], list(map(pixels, range(COUNT))))
    assert (batch["features"].dtype, batch["label"].dtype) == (np.uint8, np.int64)
    assert batch["label"].tolist() == [n % 3 for n in range(COUNT)]
    if make is IMAGES["a tuple"]:
        check_dataset(data)


def test_encoded_images_are_framed_as_those_of_a_folder():
    content = tf.io.encode_png(np.arange(288, dtype=np.uint8).reshape(8, 12, 3)).numpy()
    records = Records([(content, n % 3) for n in range(COUNT)])
    fields = Fields(num_classes=3, image_size=[4, 4])
    options = {"crop": 0.75, "antialias": True, "fields": fields}
    expected = decode(content, (4, 4, 3), Framing(0.75, antialias=True))
    data = indexed(train_source=records, test_source=records, **options)
    np.testing.assert_array_equal(everything(data.train)["features"][0], expected)
    np.testing.assert_array_equal(data.decode(tf.constant(content)), expected)


def test_images_of_other_sizes_and_colors_are_converted():
    sizes = {"image_size": [5, 7], "channels": 3}
    data = dataset(lambda n: {"image": png(n, (4 + n, 6), 3 if n else 1), "label": 0}, **sizes)
    assert everything(data.train)["features"].shape == (COUNT, 5, 7, 3)
    first = dataset(lambda n: {"image": png(n, (4 + n, 6)), "label": 0})
    assert first.input_shape == (4, 6, 1)
    palette = Image.fromarray(np.full((4, 4, 3), 9, np.uint8)).convert("P")
    assert dataset(lambda n: (palette, 0)).input_shape == (4, 4, 3)


def test_labels_may_be_names_or_missing():
    data = dataset(lambda n: (np.zeros(2), "ab"[n % 2]), num_classes=None, class_names=["b", "a"])
    assert (data.num_classes, data.class_names) == (2, ["b", "a"])
    assert everything(data.train)["label"].tolist() == [1, 0] * 4
    data = dataset(lambda n: np.full(2, n, np.float32), num_classes=None)
    assert data.num_classes == 1
    assert list(everything(data.train)) == ["features"]


@pytest.mark.parametrize("kind", [Records, Batches])
def test_source_is_called_by_one_thread_at_a_time(kind):
    split = dataset(kind(count=64)).train
    indices = tf.data.Dataset.range(256).map(lambda index: index % 64)
    batches = indices.batch(4, drop_remainder=True).map(split.fetch, num_parallel_calls=8)
    seen = np.concatenate([batch["features"][:, 0, 0, 0] for batch in batches])
    assert seen.tolist() == list(range(64)) * 4


class Broken(Records):
    def __getitem__(self, index):
        if index == 5:
            raise RuntimeError("checksum of block 7 differs")
        return super().__getitem__(index)


class BrokenBatches(Broken):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


BLOCK = "test_source: record 5 cannot be read: checksum of block 7 differs"
FIRST = (pixels(0), 0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Broken(), BLOCK),
        (BrokenBatches(), BLOCK),
        ([FIRST, FIRST, (pixels(0)[:3, 0], 0)], "record 2 has 3 numbers"),
        ([(pixels(0), 3)], r"record 0 has the label 3, .* in 0..2"),
    ],
)
def test_a_wrong_record_is_named(source, message):
    data = dataset(IMAGES["a tuple"], source)
    with pytest.raises((tf.errors.OpError, ValueError), match=message):
        everything(data.test)


VALUES = np.arange(20 * 16, dtype=np.int64).reshape(20, 16).astype(np.uint8)
LABELS = np.arange(20) % 4


def test_arrays_are_mapped_and_reshaped(tmp_path):
    write_npy(tmp_path, VALUES, LABELS)
    np.save(tmp_path / "test_features.npy", VALUES[:5])
    np.save(tmp_path / "test_labels.npy", LABELS[:5])
    data = npy(path=str(tmp_path), fields=Fields(shape=[4, 4, 1]))
    assert (data.input_shape, data.num_classes) == ((4, 4, 1), 4)
    assert (data.train.num_examples, data.test.num_examples) == (20, 5)
    batch = everything(data.train)
    assert batch["features"].reshape(20, 16).tobytes() == VALUES.tobytes()
    assert batch["label"].tolist() == LABELS.tolist()
    check_dataset(data)


SHARED = {"processes": 2, "num_classes": None}


def test_processes_read_the_same_order_and_bits():
    def batches(split):
        source = Source(split, 8, 1, SampleOrder(split.num_examples, seed=3))
        iterator = Pipeline(source, tf.distribute.get_strategy()).open(0)
        return [{name: x.numpy() for name, x in next(iterator)[0].items()} for _ in range(8)]

    alone, shared = (dataset(Pictures(32), Pictures(11), processes=count) for count in (0, 2))
    np.testing.assert_equal(batches(shared.train), batches(alone.train))
    np.testing.assert_equal(everything(shared.test), everything(alone.test))


def test_records_are_read_in_other_processes_without_tensorflow():
    split = dataset(Told(), **SHARED).train
    batch = everything(split)
    indices, processes, with_tensorflow = batch["features"].T
    assert indices.tolist() == list(range(32))
    assert os.getpid() not in processes
    assert not with_tensorflow.any()
    assert batch["label"].tolist() == [0.5 * index for index in range(32)]
    # A batch of fewer records than processes.
    assert split.fetch(tf.constant([7], tf.int64))["label"].numpy().tolist() == [3.5]


def test_lost_process_is_replaced(caplog, tmp_path):
    split = dataset(OnceDeadly(tmp_path), **SHARED).train
    with caplog.at_level(logging.WARNING):
        assert everything(split)["features"][:, 0].tolist() == list(range(32))
    (line,) = caplog.messages
    assert "records of train_source ended; it is replaced" in line
    caplog.clear()
    processes = {int(number) for number in everything(split)["features"][:, 1]}
    os.kill(processes.pop(), signal.SIGKILL)
    with caplog.at_level(logging.WARNING):
        assert everything(split)["features"][:, 0].tolist() == list(range(32))
    assert len(caplog.messages) == 1


def test_signals_to_all_processes_do_not_end_them(caplog):
    split = dataset(Told(), **SHARED).train
    before = {int(number) for number in everything(split)["features"][:, 1]}
    for process in before:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(process, number)
    assert {int(number) for number in everything(split)["features"][:, 1]} == before
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (reading_sources.Broken(), BLOCK),
        (Deadly(), "test_source: the process that read record 5 ended, for the second time"),
        (Absent(), "the source cannot be copied to another process: RuntimeError: the server is"),
    ],
)
def test_a_record_that_another_process_cannot_read_is_named(source, message, capfd):
    data = dataset(Told(), source, **SHARED)
    with pytest.raises((tf.errors.OpError, ValueError), match=message):
        everything(data.test)
    if message is BLOCK:
        log = capfd.readouterr().err
        assert "test_source: record 5 cannot be read\nTraceback" in log
        assert "reading_sources.py" in log


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


def test_processes_end_with_the_one_that_trains(tmp_path):
    path = tmp_path / "process"
    trainer = subprocess.Popen([sys.executable, "-c", _TRAINER, str(path)], cwd=ROOT)
    try:
        wait_for(path.exists)
    finally:
        trainer.kill()
        trainer.wait(30)
    reader = Path("/proc") / path.read_text()
    wait_for(lambda: not reader.exists() or "\nState:\tZ" in (reader / "status").read_text())


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
