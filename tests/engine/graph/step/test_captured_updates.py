"""Updates in a forward pass are captured, and the variables stay as they are."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.step.captured_updates import CapturedUpdates
from trainer.errors import ConfigError


def test_updates_of_batch_normalization_are_captured():
    images = np.random.RandomState(0).normal(3.0, 2.0, (8, 4, 4, 3)).astype(np.float32)
    for features in (images, images.reshape(8, -1)):
        captured_layer = tf.keras.layers.BatchNormalization(momentum=0.9)
        plain_layer = tf.keras.layers.BatchNormalization(momentum=0.9)
        for layer in (captured_layer, plain_layer):
            layer.build(features.shape)
        moving = [captured_layer.moving_mean, captured_layer.moving_variance]
        updates = CapturedUpdates(moving)

        @tf.function(autograph=False)
        def step(updates=updates, layer=captured_layer, features=features):
            with updates.capture():
                layer(features, training=True)
            return updates.values()

        before = [variable.numpy() for variable in moving]
        means = step()
        tf.function(plain_layer, autograph=False)(features, training=True)
        expected = [plain_layer.moving_mean, plain_layer.moving_variance]
        assert updates.updated() == [0, 1]
        for variable, old, mean, new in zip(moving, before, means, expected, strict=True):
            np.testing.assert_array_equal(variable.numpy(), old)
            assert mean.numpy().tobytes() == new.numpy().tobytes()
        assert "assign" not in vars(moving[0])


def test_several_updates_of_a_variable_follow_each_other_and_others_are_left_out():
    counter, frozen = tf.Variable(1.0), tf.Variable(5.0)
    updates = CapturedUpdates([frozen, counter])
    with updates.capture():
        counter.assign_add(2.0)
        counter.assign(tf.convert_to_tensor(counter) * 2.0)
        counter.assign_sub(1.0)
    assert updates.updated() == [1]
    assert [float(mean) for mean in updates.values()] == [5.0, 5.0]
    assert [float(counter), float(frozen)] == [1.0, 5.0]
    assert "read_value" not in vars(counter)


def test_forward_pass_within_another_is_refused():
    variable = tf.Variable(1.0)
    updates = CapturedUpdates([variable])
    with updates.capture(), pytest.raises(ConfigError, match="communicates between replicas"):
        CapturedUpdates([variable]).capture().__enter__()
    assert "assign" not in vars(variable)
