"""Streams: each process reads its part, and a stream continues where it was."""

import pytest
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.own_loop.streams import MAX_STREAMS, Streams


def streams(index=0, count=1, num_replicas=1, seed=0, after=None, lines=None):
    """Return streams; those of `after` are continued."""
    context = tf.distribute.InputContext(count, index, count * num_replicas)
    result = Streams(context, seed, [].append if lines is None else lines.append)
    if after is not None:
        after.record()
        result.positions.assign(after.positions)
        result.restore()
    return result


def elements(stream, count=None):
    values = []
    for value in stream.iterator:
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
    first = streams(num_replicas=num_replicas)
    whole = elements(first.stream(shuffled), 30)
    first.stream(shuffled).steps = 4
    tf.random.uniform([3])  # the user's code may draw in between
    rest = elements(streams(num_replicas=num_replicas, after=first).stream(shuffled), 5)
    assert rest == whole[4 * num_replicas :][:5]


def test_seed_of_the_run_changes_the_stream():
    same, again, other = (elements(streams(seed=x).stream(shuffled), 3) for x in (0, 0, 1))
    assert same == again != other


def test_context_has_the_pipeline_and_the_batch():
    seen = []

    def function(context):
        seen.append((context.input_pipeline_id, context.num_input_pipelines))
        return tf.data.Dataset.range(context.get_per_replica_batch_size(12))

    sizes = [len(elements(streams(index, 2, 3).stream(function))) for index in range(2)]
    assert seen == [(0, 2), (1, 2)]
    assert sizes == [2, 2]


def numbers(context):
    return tf.data.Dataset.range(10)


def letters(context):
    return tf.data.Dataset.from_tensor_slices(["a", "b", "c", "d"])


def test_each_stream_continues_at_its_own_position_in_any_order():
    lines = []
    first = streams()
    for function, steps in ((numbers, 3), (letters, 1)):
        first.stream(function).steps = steps
    second = streams(after=first, lines=lines)
    assert next(second.stream(letters).iterator).numpy() == b"b"
    assert ["letters" in line for line in lines] == [True]
    third = streams(after=streams(after=first))  # the second run reads neither
    assert next(third.stream(numbers).iterator).numpy() == 3
    assert third.stream(numbers) is third.stream(numbers)


def test_too_many_streams_are_refused():
    full = streams()

    def named(number):
        def function(context):
            return tf.data.Dataset.range(1)

        function.__name__ = f"stream_{number}"
        return function

    for number in range(MAX_STREAMS):
        full.stream(named(number))
    with pytest.raises(ConfigError, match=f"stream_{MAX_STREAMS} is one stream too many"):
        full.stream(named(MAX_STREAMS))
