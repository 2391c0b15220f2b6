"""Data at scale: what starting late in a long training, many epochs and large files cost."""

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.records import image_records, write
from tests.support.training import engine
from trainer.datasets.indexed import indexed
from trainer.datasets.mixture import MixtureSplit
from trainer.datasets.records.fields import Fields
from trainer.datasets.text_windows import WindowSplit
from trainer.engine.graph.input.feed import Pipeline, Source, sample_order

MANY = 10_000_000
BATCH = 8
TAKEN = 4
"""Batches that are taken after the input was opened."""
AHEAD = 8
"""Batches that may be fetched ahead: in the pipeline's buffers, and being fetched."""


class Counted:
    """A split that notes which examples are fetched, and stops at too many."""

    in_memory = False

    def __init__(self, split):
        self.num_examples = split.num_examples
        self.augments = getattr(split, "augments", False)
        self.parts = getattr(split, "parts", None)
        self.fetched = []
        self._split = split

    def fetch(self, indices, *draws):
        with tf.control_dependencies([tf.numpy_function(self._note, [indices], [])]):
            return self._split.fetch(tf.identity(indices), *draws)

    def _note(self, indices):
        self.fetched.append(tuple(indices.tolist()))
        assert len(self.fetched) <= TAKEN + AHEAD, f"so many batches were fetched for {TAKEN}"


class Numbers:
    """Ten million vectors, by their number."""

    def __len__(self):
        return MANY

    def __getitem__(self, index):
        return np.full([2], index % 1000, np.float32), index % 2


def numbers():
    return indexed(train_source=Numbers(), test_source=Numbers(), fields=Fields(num_classes=2))


def windows():
    """Return windows of a file of zeros that takes no room."""
    with tempfile.TemporaryFile() as file:
        file.truncate(32 * MANY + 1)
        return WindowSplit(np.memmap(file, np.uint8, "r"), 32)


SPLITS = {
    "source": lambda: numbers().train,
    "windows": windows,
    "mixture": lambda: MixtureSplit({"one": numbers(), "other": numbers()}, "train", [3, 1]),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", SPLITS.values(), ids=SPLITS)
def test_input_opened_late_fetches_no_more_than_opened_early(make):
    split = make()
    assert not split.in_memory
    for position in (10, MANY):
        counted = Counted(split)
        order = sample_order(counted, seed=3)
        inputs = Source(counted, BATCH, 1, order, num_draws=1)
        first = position // BATCH
        iterator = Pipeline(inputs, tf.distribute.get_strategy()).open(first)
        batches = [next(iterator)[0] for _ in range(TAKEN)]
        del iterator
        expected = [
            order.locate(tf.range(block * BATCH, (block + 1) * BATCH, dtype=tf.int64))[1]
            for block in range(first, first + TAKEN + AHEAD)
        ]
        for batch, indices in zip(batches, expected, strict=False):
            assert batch["id"].numpy().tolist() == indices.numpy().tolist()
        assert len(set(counted.fetched)) == len(counted.fetched) >= TAKEN
        assert set(counted.fetched) <= {tuple(indices.numpy().tolist()) for indices in expected}


EPOCHS = {
    "records": [
        "dataset=tfrecord", "dataset.path=records", "dataset.features={image: image, label: int}",
        "dataset.num_classes=3", "dataset.image_size=[8,8]",
    ],
    "processes": [
        "dataset=indexed", "dataset.train_source._target_=tests.support.toy_sources.Records",
        "+dataset.train_source.count=48",
        "+dataset.test_source._target_=tests.support.toy_sources.Records",
        "dataset.fields.num_classes=3", "dataset.processes=1",
    ],
}  # fmt: skip


def resources():
    """Return what this process holds: open files, processes, threads, Python objects."""
    gc.collect()
    tasks = list(Path("/proc/self/task").iterdir())
    children = [(task / "children").read_text().split() for task in tasks]
    return {
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "processes": sum(map(len, children)),
        "threads": len(tasks),
        "objects": len(gc.get_objects()),
    }


@pytest.mark.slow
@pytest.mark.parametrize("options", EPOCHS.values(), ids=EPOCHS)
def test_epochs_with_evaluation_leave_nothing_behind(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "records" / "train-00000-of-00001", image_records(48))
    write(tmp_path / "records" / "test-00000-of-00001", image_records(16))
    run = engine(tmp_path / "run", *options, "train.steps=null", "train.epochs=5")
    early, late = 6, 15  # the second epoch, by which all is compiled, and the fifth
    found = {}

    def look():
        if run.step in (early, late) and run.step not in found:
            found[run.step] = resources()
        return False

    run.train(look)
    # TensorFlow's pools may start a thread late. A few objects note each epoch; a compiled function
    # that stays has thousands.
    limits = {"files": 0, "processes": 0, "threads": 2, "objects": 1000}
    for name, limit in limits.items():
        assert found[late][name] - found[early][name] <= limit, name
