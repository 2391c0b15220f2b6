"""TFRecord files for tests."""

import numpy as np
import tensorflow as tf


def example(**values):
    """Return a serialized `tf.train.Example` of bytes, text, integers, floats, or lists of them."""
    return tf.train.Example(
        features=tf.train.Features(feature={name: _feature(x) for name, x in values.items()})
    ).SerializeToString()


def _feature(value):
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], bytes | str):
        values = [x.encode() if isinstance(x, str) else x for x in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if all(isinstance(x, int) for x in values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def write(path, records, compression=""):
    """Write a TFRecord file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def image_records(count, start=0):
    """Return examples `image`, a PNG of one color that is its number, and `label`, 0 to 2."""
    pictures = [np.full((9, 12, 3), number, np.uint8) for number in range(start, start + count)]
    return [
        example(image=tf.io.encode_png(picture).numpy(), label=int(picture[0, 0, 0]) % 3)
        for picture in pictures
    ]


def vector_records(count, start=0):
    """Return examples `x`, two floats of which the first is its number, and `y`, 0 or 1."""
    return [
        example(x=[float(number), number % 2 + 0.5], y=number % 2)
        for number in range(start, start + count)
    ]
