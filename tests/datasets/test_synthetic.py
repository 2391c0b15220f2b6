from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.synthetic import synthetic


def fetch_all(split: Any) -> tuple[np.ndarray, np.ndarray]:
    batch = split.fetch(tf.range(split.num_examples, dtype=tf.int64))
    return batch["features"].numpy(), batch["label"].numpy()


def test_synthetic_has_the_requested_size_and_number() -> None:
    data = synthetic(num_examples=300, num_test=7, num_classes=3, image_size=[4, 6], channels=2)
    assert (data.input_shape, data.num_classes) == ((4, 6, 2), 3)
    images, labels = fetch_all(data.train)
    assert images.shape == (300, 4, 6, 2)
    assert np.bincount(labels).tolist() == [100, 100, 100]
    assert data.test.num_examples == 7


def test_same_seed_makes_the_same_images() -> None:
    first, again, other = (
        fetch_all(synthetic(num_examples=20, seed=seed).train)[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_synthetic_stream_never_changes() -> None:
    assert fetch_all(synthetic(num_examples=2, image_size=[1, 2], channels=1).train)[
        0
    ].ravel().tolist() == [228, 141, 160, 78]


def test_synthetic_classes_are_separable() -> None:
    data = synthetic(num_examples=500, num_test=100)
    (images, labels), (tests, answers) = fetch_all(data.train), fetch_all(data.test)
    means = np.stack([images[labels == label].mean(0) for label in range(10)])
    nearest = np.square(tests[:, None].astype(np.float32) - means).sum((2, 3, 4)).argmin(1)
    assert (nearest == answers).mean() == 1.0
    assert (tests[0] != images[0]).any()
