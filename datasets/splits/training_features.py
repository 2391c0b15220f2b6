"""The features of a training split, once and in order: what preprocessing layers are adapted to."""

from __future__ import annotations

import tensorflow as tf

from trainer.protocols import Batch, Dataset, Stream


def training_features(dataset: Dataset, batch_size: int = 1024) -> tf.data.Dataset:
    """Return the features of every training example, in batches, by index: nothing is drawn.

    Examples without weight, such as unreadable images, are left out.

    Returns:
        A dataset of features [B, ...], a tensor or a nest, as the model receives them.
    """
    split = dataset.train
    count = split.num_examples

    def transformed(batch: Batch) -> tf.Tensor:
        batch = dataset.transform(batch, None)
        if "weight" not in batch:
            return batch["features"]
        return tf.nest.map_structure(lambda x: x[batch["weight"] > 0], batch["features"])

    def rows(size: int, start: int, stop: int) -> tf.data.Dataset:
        if isinstance(split, Stream):
            examples = split.stream().skip(start).take(stop - start)
            return examples.batch(size, drop_remainder=True).map(transformed)
        offsets = tf.range(size, dtype=tf.int64)
        starts = tf.data.Dataset.range(start, stop, size)
        return starts.map(lambda row: transformed(split.fetch(row + offsets)))

    # `transform` is promised a static size.
    whole = count - count % batch_size
    parts = [(batch_size, 0, whole), (count - whole, whole, count)]
    first, *rest = [rows(*part) for part in parts if part[0] and part[1] < part[2]]
    return first.concatenate(rest[0]) if rest else first
