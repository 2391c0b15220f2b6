"""Weights and slots in shared memory: how they are divided, and when memory is used again."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.meetings import opened
from trainer.engine.graph.exchange.divided_state import DividedState, Part, divide

SHAPES = [(40, 6), (24,)]


@pytest.mark.parametrize(
    ("shapes", "by_rows", "count", "parts"),
    [
        ([(64, 32)], [True], 2, [[Part(0, 0, 1024)], [Part(0, 1024, 2048)]]),
        # Rows of 6 numbers: eight of them end where 16 numbers do.
        ([(40, 6)], [True], 2, [[Part(0, 0, 96)], [Part(0, 96, 240)]]),
        ([(40, 6)], [False], 2, [[], [Part(0, 0, 240)]]),
        ([(10,), (), (6,)], [True] * 3, 2, [[Part(0, 0, 10)], [Part(1, 0, 1), Part(2, 0, 6)]]),
        ([(32,), (32,)], [True, False], 4, [
            [Part(0, 0, 16)], [Part(0, 16, 32)], [], [Part(1, 0, 32)],
        ]),
    ],
)  # fmt: skip
def test_parts_are_whole_rows_that_begin_where_kernels_do(shapes, by_rows, count, parts):
    assert divide(shapes, by_rows, count) == parts


@pytest.fixture
def states(request):
    """The states of two processes, each with a part of the first weight, and their threads."""
    parts = divide(SHAPES, [True, True], 2)
    with opened(2, request.node.name) as members, ThreadPoolExecutor(2) as pool:
        yield (
            [
                DividedState(member, -1, SHAPES, SHAPES[:1], own, [x for x in own if x.tensor == 0])
                for member, own in zip(members, parts, strict=True)
            ],
            pool,
        )


def wholes(value):
    return [np.full(shape, value, np.float32) for shape in SHAPES]


def take(states, pool, weights, slot):
    """Have each process take its parts; return those of weights and slots, without guards."""

    def take_own(state):
        own, slots = state._own
        given = [weights[x.tensor] for x in own]
        taken = state.take(*given, *given, *(slot for _ in slots))
        assert [x.base is not None for x in taken[: len(own)]] == [True] * len(own)
        return [x[DividedState.GUARD :] for x in taken[len(own) :]]

    return list(pool.map(take_own, states))


def give(states, pool, values):
    return list(pool.map(lambda state, own: state.give(*own), states, values))


def test_all_get_what_each_has_updated_where_it_lies(states):
    members, pool = states
    taken = take(members, pool, wholes(1.0), np.full(SHAPES[0], 5.0, np.float32))
    for number, parts in enumerate(taken):
        for part in parts:
            part += number + 1
    results = give(members, pool, taken)
    for matrix, vector, slot in results:
        assert matrix.reshape(-1)[:144].tolist() == [2.0] * 144
        assert matrix.reshape(-1)[144:].tolist() == [3.0] * 96
        assert set(vector) == {3.0}
        assert set(slot.reshape(-1)) == {6.0, 7.0}
    assert all(np.shares_memory(x, y) is False for x, y in zip(*results, strict=True))
    assert [member.num_moved for member in members] == [0, 0]


def test_what_was_updated_elsewhere_is_copied_back(states):
    members, pool = states
    taken = take(members, pool, wholes(1.0), np.zeros(SHAPES[0], np.float32))
    results = give(members, pool, [[part + 1 for part in parts] for parts in taken])
    assert all(set(x.reshape(-1)) == {2.0} for x in results[1][:2])
    assert all(member.num_moved > 0 for member in members)


def test_row_of_weights_that_somebody_holds_is_left_alone(states):
    members, pool = states
    results = give(members, pool, take(members, pool, wholes(1.0), np.zeros(SHAPES[0], "f")))
    held = results[0][0]
    for value in (2.0, 3.0, 4.0):
        weights, slot = [x.copy() for x in results[0][:2]], results[0][2]
        taken = take(members, pool, weights, slot)
        for part in taken[0][:1] + taken[1][:1]:
            part[:] = value
        results = give(members, pool, taken)
        assert set(results[1][0].reshape(-1)) == {value}
        assert set(held.reshape(-1)) == {1.0}
    assert {len(member._rows) for member in members} == {3}
