"""What a forward pass assigns is kept apart, and the variables stay as they are."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.step.assignments import note_update, own_values, pass_values
from trainer.errors import ConfigError


def test_updates_of_batch_normalization_are_captured():
    images = np.random.RandomState(0).normal(3.0, 2.0, (8, 4, 4, 3)).astype(np.float32)
    for features in (images, images.reshape(8, -1)):
        captured_layer = tf.keras.layers.BatchNormalization(momentum=0.9)
        plain_layer = tf.keras.layers.BatchNormalization(momentum=0.9)
        for layer in (captured_layer, plain_layer):
            layer.build(features.shape)
        moving = [captured_layer.moving_mean, captured_layer.moving_variance]

        @tf.function(autograph=False)
        def step(moving=moving, layer=captured_layer, features=features):
            with own_values(moving) as assigned:
                layer(features, training=True)
            return [assigned[id(variable)].value for variable in moving]

        before = [variable.numpy() for variable in moving]
        means = step()
        tf.function(plain_layer, autograph=False)(features, training=True)
        expected = [plain_layer.moving_mean, plain_layer.moving_variance]
        for variable, old, mean, new in zip(moving, before, means, expected, strict=True):
            np.testing.assert_array_equal(variable.numpy(), old)
            assert mean.numpy().tobytes() == new.numpy().tobytes()
        assert "assign" not in vars(moving[0])


def test_several_updates_of_a_variable_follow_each_other_and_others_are_left_out():
    counter, frozen = tf.Variable(1.0), tf.Variable(5.0)
    with own_values([frozen, counter], lambda v: v + 1.0 if v is counter else None) as outer:
        with own_values([counter]) as inner:
            counter.assign_add(2.0)
            counter.assign(tf.convert_to_tensor(counter) * 2.0)
            counter.assign_sub(1.0)
        note_update(counter, inner[id(counter)].value, inner[id(counter)].old)
        assert float(counter.read_value()) == 5.0
    assert [float(outer[id(counter)].value), float(outer[id(counter)].old)] == [5.0, 1.0]
    assert id(frozen) not in outer
    assert [float(counter), float(frozen)] == [1.0, 5.0]
    assert "read_value" not in vars(counter)


def test_operators_of_a_variable_of_central_storage_read_what_was_assigned():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
    with own_values([variable]):
        variable.assign_add(2.0)
        inside = 2.0 * variable
    assert (float(inside), float(2.0 * variable)) == (6.0, 2.0)


def test_forward_pass_within_another_is_refused():
    variable, model = tf.Variable(1.0), tf.keras.Sequential()
    with (
        pass_values(model, [variable]),
        pytest.raises(ConfigError, match="communicates between replicas"),
        pass_values(model, [variable]),
    ):
        pass
    assert "assign" not in vars(variable)
