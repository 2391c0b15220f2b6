from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.synthetic import synthetic


def fetch_all(split: Any) -> tuple[np.ndarray, np.ndarray]:
    batch = split.fetch(tf.range(split.num_examples, dtype=tf.int64))
    return batch["features"].numpy(), batch["label"].numpy()


def test_same_seed_makes_the_same_images() -> None:
    first, again, other = (
        fetch_all(synthetic(num_examples=20, seed=seed).train)[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_synthetic_classes_are_separable() -> None:
    data = synthetic(num_examples=500, num_test=100)
    (images, labels), (tests, answers) = fetch_all(data.train), fetch_all(data.test)
    means = np.stack([images[labels == label].mean(0) for label in range(10)])
    nearest = np.square(tests[:, None].astype(np.float32) - means).sum((2, 3, 4)).argmin(1)
    assert (nearest == answers).mean() == 1.0
    assert (tests[0] != images[0]).any()
