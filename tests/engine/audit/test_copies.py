"""Copies are compared to the bit, and the one that most contradict is named."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.audit.copies import differing_elements, find_difference, owners, vote
from trainer.engine.process_group import ProcessGroup


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ("aaa", (0, [], True)),
        ("aba", (0, [1], True)),
        ("baa", (1, [0], True)),
        ("abacaa", (0, [1, 3], True)),
        ("ab", (0, [1], False)),
        ("aabb", (0, [2, 3], False)),
        ("abc", (0, [1, 2], False)),
    ],
)
def test_majority_is_more_than_half(digests, expected):
    assert vote(digests) == expected


def test_owner_is_a_process_or_its_replica():
    assert owners(["chief-0", "worker-0"], 1) == ["chief-0", "worker-0"]
    assert owners(["worker-0"], 2) == ["worker-0 (replica 0)", "worker-0 (replica 1)"]


def test_elements_are_compared_by_their_bits():
    first = np.zeros([2, 3], np.float32)
    second = first.copy()
    second[1, 2] = -0.0
    assert (
        differing_elements(first, second, "and") == "element [1, 2] is 0 and -0 (1 of 6 elements)"
    )
    assert differing_elements(np.int64(3), np.int64(5), "instead of") == (
        "3 instead of 5 (1 of 1 element)"
    )


def differing(num_copies, changed):
    """Compare copies within one process, of which `changed` maps number and name to a value."""
    copies = [
        {"w": np.arange(4, dtype=np.float32), "half": tf.zeros([2], tf.bfloat16).numpy()}
        for _ in range(num_copies)
    ]
    for (number, name), value in changed.items():
        copies[number][name][1] = value
    group = ProcessGroup(tf.distribute.get_strategy())
    return find_difference(group, owners(["worker-0"], num_copies), copies)


def test_difference_names_tensor_owner_and_values():
    assert differing(3, {}) == ""
    assert differing(3, {(2, "w"): 1.5}) == (
        "w of worker-0 (replica 2) differs from the 2 other copies': element [1] is 1.5 instead of "
        "1 (1 of 4 elements)"
    )
    assert differing(2, {(0, "w"): 1.5, (0, "half"): 1}) == (
        "w differs between worker-0 (replica 0) and worker-0 (replica 1), and no majority tells "
        "which is wrong: element [1] is 1.5 and 1 (1 of 4 elements); so do 1 more"
    )
