"""Groups of processes; what needs several is in tests/end_to_end/."""

import tensorflow as tf

from trainer.engine.process_group import ProcessGroup


def test_collectives_are_traced_for_few_lengths():
    first = ProcessGroup(tf.distribute.get_strategy(), 0, 2)
    for length in [*range(70), 1000, 1001]:
        text = ("aé" * length)[:length]
        assert first.broadcast_text(0, text) == text
        assert first.all_reduce_sum(*range(length)) == list(range(length))
    assert first._sums.experimental_get_tracing_count() <= 11


def test_process_gathers_its_integers_at_its_place():
    assert ProcessGroup(tf.distribute.get_strategy(), 1, 3).gather(4, -1) == [
        [0, 0],
        [4, -1],
        [0, 0],
    ]
