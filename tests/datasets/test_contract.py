"""The datasets that need no files keep the contract."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import check_dataset, check_split
from trainer.datasets.digits import digits
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit
from trainer.datasets.synthetic import synthetic


def test_digits_keep_the_contract() -> None:
    check_dataset(digits())


def test_augmented_images_keep_the_contract() -> None:
    augment = Augmentation(min_area=0.5, flip=True, crop=2, brightness=0.1)
    check_dataset(synthetic(num_examples=40, num_test=5, augment=augment))


class _Counting(ArraySplit):
    """Breaks the contract: what it returns depends on how often it was asked."""

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        noise = tf.random.uniform(tf.shape(indices))
        return {**super().fetch(indices), "features": noise}


def test_contract_finds_a_split_that_does_not_repeat() -> None:
    with pytest.raises(AssertionError, match="a second time: features has other bits"):
        check_split(_Counting(np.zeros([5, 2]), np.zeros(5)))
