"""Segmentation: loss and metrics by formula, on any layout; masks as files and exported."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.outputs import exported_outputs, predicted_rows
from tests.support.training import recipe
from trainer.engine.graph.step.metric_sums import pack, sums_of, unpack
from trainer.tasks.segmentation import Segmentation

TINY = [
    "task=segmentation",
    "dataset=shapes",
    "dataset.num_examples=48",
    "dataset.num_test=20",
    "dataset.image_size=[16,16]",
    "model.width=2",
    "model.depth=1",
    "augment.flip=true",
    "augment.crop=2",
    "optimizer=sgd",
    "batch.global_size=16",
    "train.steps=4",
    "train.epochs=null",
    "evaluate.every_epochs=null",
    "writers=[jsonl]",
]


def make(run_dir, *overrides):
    return recipe(run_dir, *TINY, *overrides)


def toy(num_classes):
    """Return a task whose features are the logits."""
    task = Segmentation()
    parts = {"model": lambda: lambda x, training: x, "optimizer": lambda: None}
    task.build(SimpleNamespace(num_classes=num_classes, input_shape=(4, 5, 1), **parts))
    return task


def test_loss_and_metrics_equal_numpy_over_unequal_batches():
    random = np.random.default_rng(0)
    logits = random.normal(size=[7, 4, 5, 4]).astype(np.float32)
    masks = random.integers(0, 3, [7, 4, 5]).astype(np.uint8)  # class 3 is never right
    masks[random.random(masks.shape) < 0.2] = 255
    masks[2] = 255  # nothing counts
    weight = np.array([1, 1, 1, 0, 1, 1, 1], np.float32)
    task = toy(4)
    total = np.zeros(2 * len(task.metrics))
    for part in (slice(0, 3), slice(3, 4), slice(4, 7)):
        batch = {"features": tf.constant(logits[part]), "mask": tf.constant(masks[part])}
        total += pack(task, sums_of(*task.eval_step(batch), tf.constant(weight[part]))).numpy()
    values = unpack(task, total)

    log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    losses = []
    for example in np.flatnonzero(weight):
        rows, columns = np.nonzero(masks[example] != 255)
        picked = log_p[example, rows, columns, masks[example, rows, columns]]
        losses.append(-picked.mean() if len(rows) else 0.0)
    valid = (masks != 255) & (weight > 0)[:, None, None]
    labels, found = masks[valid], logits.argmax(-1)[valid]
    each = [
        ((labels == k) & (found == k)).sum() / ((labels == k) | (found == k)).sum()
        for k in range(4)
    ]
    assert values["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert values["accuracy"] == pytest.approx((labels == found).mean(), rel=1e-6)
    assert [values[f"iou/{k}"] for k in range(4)] == pytest.approx(each, rel=1e-6)
    assert values["mean_iou"] == pytest.approx(np.mean(each), rel=1e-6)


def test_class_that_does_not_occur_does_not_count_in_the_mean():
    values = toy(3).derive_metrics(
        {"loss": 1.0, "accuracy": 0.5, "iou/0": 0.5, "iou/1": float("nan"), "iou/2": 0.25}
    )
    assert values["mean_iou"] == pytest.approx(0.375)


@pytest.mark.slow
def test_masks_are_files_and_equal_the_export(tmp_path):
    make(tmp_path).train(lambda: False)
    rows = predicted_rows(tmp_path, TINY)
    assert [row["mask"] for row in rows] == [f"test-4-mask/{number}.png" for number in range(20)]
    folder = tmp_path / "predictions"
    masks = np.stack([np.asarray(Image.open(folder / row["mask"])) for row in rows])
    assert (masks.dtype, masks.shape, list(rows[0])) == (np.uint8, (20, 16, 16), ["id", "mask"])
    outputs, card = exported_outputs(tmp_path, TINY, 16)
    np.testing.assert_array_equal(outputs["mask"], masks)
    np.testing.assert_array_equal(outputs["mask"], outputs["probabilities"].argmax(-1))
    assert "`mask`, [N, 16, 16] uint8" in card
