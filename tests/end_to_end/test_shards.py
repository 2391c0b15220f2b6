"""With `batch.shards` a run has the same bits on any number of devices and processes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.support.marks import first_only
from tests.support.processes import finished, log
from tests.support.training import assert_same_bits, engine, train, trained
from trainer.launch.modes.run_comparison import differences, read

EVERYTHING = [
    "model=cnn", "model._target_=tests.support.toy_models.everything", "model.width=4",
    "model.dropout=0.3", "model.batch_norm=true", "model.l2=0.001",
    "dataset=digits", "augment.crop=1", "augment.brightness=0.2", "augment.contrast=0.2",
    "augment.randaugment=1", "augment.magnitude=5", "augment.mixup=0.2", "augment.cutmix=1.0",
    "train.steps=6", "batch.global_size=48", "batch.accumulate=2",
    "train.clip_norm=0.5", "train.ema_decay=0.9", "optimizer.learning_rate=0.02",
    "summary.every_steps=2", "evaluate.every_steps=3", "checkpoint.every_steps=3",
    "metrics=confusion", "writers=[jsonl]", "restart.max_restarts=0",
]  # fmt: skip
"""All that depends on how a batch is cut, at once."""

MOMENTUM = ["optimizer=sgd", "optimizer.momentum=0.9"]

MULTI_WORKER = "strategy=multi_worker"
LAYOUTS = {
    "mirrored 4": ["strategy=mirrored", "strategy.virtual_devices=4"],
    "2 workers": [MULTI_WORKER, "strategy.workers=2"],
    "2 workers, ring": [MULTI_WORKER, "strategy.workers=2", "strategy.communication=ring"],
    "central storage 2": ["strategy=central_storage", "strategy.virtual_devices=2"],
    "mirrored 2": ["strategy=mirrored", "strategy.virtual_devices=2"],
    "1 worker": [MULTI_WORKER, "strategy.workers=1"],
    "4 workers": [MULTI_WORKER, "strategy.workers=4"],
    "4 workers, ring": [MULTI_WORKER, "strategy.workers=4", "strategy.communication=ring"],
    "2 workers with 2 devices": [
        MULTI_WORKER,
        "strategy._target_=tests.support.toy_strategies.TwoDevices",
        "strategy.workers=2",
        "strategy.communication=ring",
    ],
}
"""How many replicas share the 4 shards, and how they communicate.

Each process traces each of its shards: 8 take twice as long.
"""


REFERENCE = [*EVERYTHING, *MOMENTUM, "batch.shards=4"]


def outcome(run_dir):
    """Return what a run has come to, without the directory in its lines."""
    return replace(read(run_dir), kills=())


def joined(chunks):
    """Concatenate chunks of predictions."""
    chunks = list(chunks)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The engine of the same run, in this process, with its directory."""
    directory = tmp_path_factory.mktemp("straight")
    run = engine(directory, *EVERYTHING, *MOMENTUM, "batch.shards=4")
    run.train(lambda: False)
    return run, directory


@pytest.mark.slow
@pytest.mark.parametrize("layout", first_only(LAYOUTS, 4))
def test_every_layout_has_the_bits_of_one_device(layout):
    reference = finished(*REFERENCE, "strategy=one_device")
    run_dir = finished(*REFERENCE, *LAYOUTS[layout])
    assert differences(outcome(reference), outcome(run_dir)) == []
    assert log(run_dir) == log(reference)
    assert json.loads((run_dir / "run.json").read_text())["threads"] >= 1


WAVES = [
    "dataset._target_=tests.support.toy_datasets.waves",
    "augment.brightness=0.2", "train.steps=4", "batch.global_size=36", "batch.shards=4",
    "evaluate.every_steps=2", "summary.every_steps=1", "optimizer.learning_rate=0.1",
]  # fmt: skip


@pytest.mark.slow
def test_transform_of_a_dataset_has_the_bits_of_one_device(tmp_path):
    one = trained(*WAVES)
    mirrored = ["strategy=mirrored", "strategy.virtual_devices=4"]
    assert_same_bits(one.variables, train(tmp_path, *WAVES, *mirrored))
    assert log(tmp_path) == log(one.run_dir)


@pytest.mark.slow
def test_predictions_and_evaluations_have_the_bits_of_one_device(straight):
    one, directory = straight
    layout = ["strategy=mirrored", "strategy.virtual_devices=4"]
    other = engine(directory, *EVERYTHING, *MOMENTUM, "batch.shards=4", *layout)
    other.checkpointer.restore(6)
    assert (
        one.evaluator.evaluate(lambda: False).metrics
        == other.evaluator.evaluate(lambda: False).metrics
    )
    rows, other_rows = (joined(each.predictor.predict()) for each in (one, other))
    assert len(rows["id"]) == 360
    assert_same_bits(rows, other_rows)
