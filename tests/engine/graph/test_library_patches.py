"""What is replaced in TensorFlow and Keras is still what they call."""

import keras
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from trainer.engine.graph import library_patches


def test_gradients_of_what_is_used_three_times_are_added_in_pairs():
    added = []

    def add(left, right):
        added.append((left, right))
        return left + right

    x = tf.constant(2.0)
    for num_sums in (2, 0):
        added.clear()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.sin(x) + tf.cos(x) + tf.exp(x)
        if num_sums:
            with library_patches.gradients_added_by(add):
                tape.gradient(y, x)
        else:
            tape.gradient(y, x)
        assert len(added) == num_sums


def test_tape_notes_the_number_that_it_derives():
    noted, x = [], tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        y = x * x
    with library_patches.targets_noted(noted.append):
        tape.gradient(y, x)
    tape.gradient(y, x)
    assert [float(value) for value in noted] == [9.0]


@pytest.mark.parametrize("of_tf_keras", [True, False], ids=["tf_keras", "keras"])
def test_losses_of_a_replica_are_means_of_its_examples(of_tf_keras):
    library = tf.keras if of_tf_keras else keras
    library_patches.scale_no_losses(of_tf_keras=of_tf_keras)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    @tf.function
    def step():
        loss = library.losses.MeanSquaredError()
        return strategy.run(lambda: loss(tf.zeros([4, 1]), 2.0 * tf.ones([4, 1])))

    with strategy.scope():
        losses = strategy.experimental_local_results(step())
    assert [float(loss) for loss in losses] == [4.0, 4.0]


def test_nothing_that_moves_batches_to_devices_is_tuned(monkeypatch):
    library_patches.end_iterators_at_once()
    create, made = multi_device_iterator_ops._create_device_dataset, []

    def noted(*args, **options):
        made.append(create(*args, **options))
        return made[-1]

    monkeypatch.setattr(multi_device_iterator_ops, "_create_device_dataset", noted)
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    iter(strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(4)))
    assert [dataset.options().autotune.enabled for dataset in made] == [False, False]


def test_layer_runs_within_a_scope_with_its_casts_and_losses():
    kernel = tf.keras.regularizers.L2(0.5)
    layer = tf.keras.layers.Dense(1, kernel_regularizer=kernel, dtype="mixed_float16")
    layer.build([None, 1])
    library_patches.run_layer_within(layer, lambda: tf.name_scope("scope"))

    @tf.function
    def call(x):
        return layer(x), layer.losses

    graph = call.get_concrete_function(tf.TensorSpec([1, 1])).graph
    names = [op.name for op in graph.get_operations() if op.type in ("Cast", "MatMul", "L2Loss")]
    assert len(names) > 3
    assert all(name.startswith("scope") for name in names)
