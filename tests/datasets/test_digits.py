import numpy as np
import tensorflow as tf

from trainer.datasets.digits import digits


def test_digits_contain_every_image_once() -> None:
    data = digits()
    assert (data.train.num_examples, data.test.num_examples) == (1437, 360)
    batches = [
        split.fetch(tf.range(split.num_examples, dtype=tf.int64))
        for split in (data.train, data.test)
    ]
    images = np.concatenate([batch["features"] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches])
    assert images.shape == (1797, 8, 8, 1)
    assert (images.dtype, images.max(), int(images.sum())) == (np.uint8, 16, 561718)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
