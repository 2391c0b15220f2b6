"""The transform of a dataset, applied to each shard of a replica's batch."""

import numpy as np
import tensorflow as tf

from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, current_part
from trainer.engine.graph.step.shards import transform_shards

FEATURES = np.random.RandomState(0).normal(size=(36, 7, 5)).astype(np.float32)
DRAWS = np.random.RandomState(1).uniform(size=(36, 2)).astype(np.float32)


def test_each_shard_is_transformed_in_a_shape_of_its_own_and_traced_once():
    shapes = []

    def transform(batch, draws):
        shapes.append((tuple(batch["features"].shape), current_part().size))
        waves = tf.exp(tf.sin(batch["features"] * 7.3)) + draws[:, 1, None, None]
        return {"features": waves, "mean": tf.reduce_mean(waves, axis=[1, 2])}

    @tf.function(autograph=False)
    def whole(features, draws, count):
        with batch_part(BatchPart(lambda: tf.zeros([2], tf.int64), 36, 0)):
            return transform_shards(transform, {"features": features}, draws, count)

    for count in (4, 12):
        shapes.clear()
        result = whole(FEATURES, DRAWS, count)
        size = 36 // count
        assert shapes == [((size, 7, 5), size)]
        parts = [whole(FEATURES[i : i + size], DRAWS[i : i + size], 1) for i in range(0, 36, size)]
        for name, value in result.items():
            expected = np.concatenate([part[name] for part in parts])
            assert value.numpy().tobytes() == expected.tobytes()
            assert value.shape == expected.shape
