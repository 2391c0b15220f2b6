"""Streams: each process reads its part, and a stream continues where it was."""

import pytest
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.own_loop.streams import MAX_STREAMS, InputPipeline, Streams


def pipeline(index=0, count=1, num_replicas=1, seed=0):
    context = tf.distribute.InputContext(count, index, count * num_replicas)
    return InputPipeline(context, num_replicas, seed)


def elements(iterator, count=None):
    values = []
    for value in iterator:
        values.append(value.numpy().tolist())
        if len(values) == count:
            break
    return values


def shuffled(context):
    """Be random in every way that has no seed."""
    numbers = tf.data.Dataset.range(50).shuffle(20).repeat()
    return numbers.map(lambda i: tf.cast(i, tf.float32) + tf.random.uniform([])).batch(2)


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_stream_is_the_same_when_it_is_made_again_and_skipped(num_replicas):
    whole = elements(pipeline(num_replicas=num_replicas).open(shuffled, 0), 30)
    tf.random.uniform([3])  # whatever the user's code has drawn in between
    rest = elements(pipeline(num_replicas=num_replicas).open(shuffled, 4), 5)
    assert rest == whole[4 * num_replicas :][:5]


def test_seed_of_the_run_changes_the_stream():
    streams = [elements(pipeline(seed=seed).open(shuffled, 0), 3) for seed in (0, 0, 1)]
    assert streams[0] == streams[1]
    assert streams[0] != streams[2]


def test_context_tells_the_pipeline_and_the_batch():
    seen = []

    def function(context):
        seen.append((context.input_pipeline_id, context.num_input_pipelines))
        return tf.data.Dataset.range(context.get_per_replica_batch_size(12))

    sizes = [len(elements(pipeline(index, 2, 3).open(function, 0))) for index in range(2)]
    assert seen == [(0, 2), (1, 2)]
    assert sizes == [2, 2]
    with pytest.raises(ValueError, match="not divisible"):
        pipeline(0, 2).open(
            lambda context: tf.data.Dataset.range(context.get_per_replica_batch_size(3)), 0
        )


def numbers(context):
    return tf.data.Dataset.range(10)


def letters(context):
    return tf.data.Dataset.from_tensor_slices(["a", "b", "c", "d"])


def test_each_stream_continues_at_its_own_position_in_any_order():
    lines = []
    first = Streams(pipeline(), lines.append)
    for function, steps in ((numbers, 3), (letters, 1)):
        first.stream(function).steps = steps
    first.record()
    second = Streams(pipeline(), lines.append)
    second.positions.assign(first.positions)
    second.restore()
    assert next(second.stream(letters).iterator).numpy() == b"b"
    assert next(second.stream(numbers).iterator).numpy() == 3
    assert lines == [
        "Skipping the elements of 1 steps of the stream letters.",
        "Skipping the elements of 3 steps of the stream numbers.",
    ]
    assert second.stream(numbers) is second.stream(numbers)


def test_position_of_a_stream_that_is_not_read_again_is_kept():
    first = Streams(pipeline(), lambda line: None)
    first.stream(numbers).steps = 3
    first.record()
    second = Streams(pipeline(), lambda line: None)
    second.positions.assign(first.positions)
    second.restore()
    second.record()
    assert second.positions.numpy().tolist() == first.positions.numpy().tolist()


def test_too_many_streams_are_refused():
    streams = Streams(pipeline(), lambda line: None)

    def named(number):
        def function(context):
            return tf.data.Dataset.range(1)

        function.__name__ = f"stream_{number}"
        return function

    for number in range(MAX_STREAMS):
        streams.stream(named(number))
    with pytest.raises(ConfigError, match=f"stream_{MAX_STREAMS} is one stream too many"):
        streams.stream(named(MAX_STREAMS))
