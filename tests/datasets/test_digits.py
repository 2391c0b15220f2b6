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


def test_digits_scale_sixteen_to_white() -> None:
    data = digits()
    features = data.transform(data.train.fetch(tf.range(100, dtype=tf.int64)), None)["features"]
    assert (float(tf.reduce_min(features)), float(tf.reduce_max(features))) == (0.0, 1.0)
    assert (data.input_shape, data.num_classes) == ((8, 8, 1), 10)
    assert digits(image_size=[32, 32]).input_shape == (32, 32, 1)
