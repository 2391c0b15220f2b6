from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.input.feed import SampleOrder
from trainer.engine.graph.input.mixed_order import MixedOrder, epoch_lines, period_of, sample_order

PARTS = ((10, 3), (4, 1), (7, 2))
STARTS = (0, 10, 14)


def locate(order: SampleOrder, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    epochs, indices = order.locate(tf.constant(positions, tf.int64))
    return epochs.numpy(), indices.numpy()


def source_of(indices: np.ndarray) -> np.ndarray:
    return np.searchsorted(STARTS, indices, side="right") - 1


@pytest.mark.parametrize("seed", [0, 7])
def test_every_stretch_has_the_shares_and_every_epoch_each_example_once(seed: int) -> None:
    order = MixedOrder(21, seed, PARTS)
    epochs, indices = locate(order, np.arange(6 * 140))
    source = source_of(indices)
    for number, (size, share) in enumerate(PARTS):
        mine = source == number
        told = np.cumsum(mine) - np.arange(1, len(mine) + 1) * share / 6
        assert np.abs(told).max() <= 1.0  # of any stretch from the start
        own = indices[mine] - STARTS[number]
        assert len(own) == share * 140
        assert (epochs[mine] == np.arange(len(own)) // size).all()
        for first in range(0, len(own) - size, size):
            assert sorted(own[first : first + size]) == list(range(size))
        assert own[:size].tolist() != own[size : 2 * size].tolist()


def test_position_alone_decides(tmp_path) -> None:
    order = MixedOrder(21, 3, PARTS)
    positions = np.array([5, 0, 10**7, 5, 123456789012])
    epochs, together = locate(order, positions)
    alone = [locate(order, positions[i : i + 1]) for i in range(5)]
    assert together.tolist() == [int(index[0]) for _, index in alone]
    assert epochs.tolist() == [int(epoch[0]) for epoch, _ in alone]
    assert together[0] == together[3]
    other = locate(MixedOrder(21, 4, PARTS), np.arange(100))[1]
    assert locate(order, np.arange(100))[1].tolist() != other.tolist()


def test_sources_of_one_size_have_orders_of_their_own() -> None:
    _, indices = locate(MixedOrder(40, 0, ((20, 1), (20, 1))), np.arange(40))
    assert indices[::2].tolist() != (indices[1::2] - 20).tolist()


def test_period_spreads_each_source_evenly() -> None:
    sources, ranks = period_of([3, 1])
    assert (sources.tolist(), ranks.tolist()) == ([0, 0, 1, 0], [0, 1, 0, 2])


def test_split_with_parts_gets_a_mixed_order_and_a_line_for_each() -> None:
    parts = [
        SimpleNamespace(name="a", size=1000, share=3),
        SimpleNamespace(name="b", size=10, share=1),
    ]
    split = SimpleNamespace(num_examples=1010, parts=parts)
    assert sample_order(split, 2) == MixedOrder(1010, 2, ((1000, 3), (10, 1)))
    assert sample_order(SimpleNamespace(num_examples=5), 2) == SampleOrder(5, 2)
    assert list(epoch_lines(split, 400)) == [
        "Source a: 1,000 examples, share 0.75, 0.3 epochs",
        "Source b: 10 examples, share 0.25, 10 epochs",
    ]
    assert list(epoch_lines(SimpleNamespace(num_examples=5), 400)) == []
