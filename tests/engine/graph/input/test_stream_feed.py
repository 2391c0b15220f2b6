"""A stream as the input of the built-in loop: samples by position, whoever reads them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.choices import NEEDED
from tests.support.training import assert_same_bits, finish, recipe
from trainer.datasets.fit_data import data_of_fit
from trainer.engine.graph.input.feed import SampleOrder, Source, StreamFeed

NODES = (
    "dataset=stream", *NEEDED["dataset=stream"], "model=softmax", "train.steps=6",
    "batch.global_size=16", "checkpoint.every_steps=2", "writers=[jsonl]",
)  # fmt: skip


class Numbers:
    """A stream of numbers, shuffled anew whenever it is made."""

    in_memory, num_examples = False, 10

    def stream(self):
        return tf.data.Dataset.range(10).shuffle(10).repeat().map(lambda i: {"features": i})


def batched():
    """Return batches of 12 numbers, the last of 6, of which each pass shuffles the whole."""
    return (
        tf.data.Dataset.range(30).shuffle(30).batch(12).map(lambda i: {"x": tf.cast(i, tf.float32)})
    )


def generated():
    """Yield such batches, without a seed."""
    order = np.random.permutation(30).astype(np.float32)
    for start in (0, 12, 24):
        yield {"x": order[start : start + 12]}


def parts_of_batches(function, replicas, step, count):
    split = data_of_fit(data=function, num_examples=30, batched=True).train
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    feed = StreamFeed(Source(split, 12 // replicas, replicas, SampleOrder(30, 3)), strategy)
    iterator = feed.open(step)
    steps = []
    for _ in range(count):
        batch, _ = feed.next(iterator)
        parts = strategy.experimental_local_results(batch["features"]["x"])
        steps.append(np.concatenate(parts).tolist())
    return steps


@pytest.mark.parametrize("function", [batched, generated])
def test_batches_of_a_program_are_the_same_on_any_layout_and_from_any_step(function):
    whole = parts_of_batches(function, 1, 0, 10)
    assert parts_of_batches(function, 4, 4, 6) == whole[4:]
    flat = np.concatenate(whole)
    for first in (0, 30, 60):
        assert sorted(flat[first : first + 30]) == list(range(30))
    assert flat[:30].tolist() != flat[30:60].tolist()


def batches(replicas, step=0, left_out=(), count=3, num_draws=0):
    """Return what a strategy's replicas are given: [steps][replicas] of (batch, draws)."""
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    source = Source(Numbers(), 12 // replicas, replicas, SampleOrder(10, 3), num_draws)
    feed = StreamFeed(source, strategy)
    iterator = feed.open(step, left_out)
    return [
        [
            tuple(tf.nest.map_structure(lambda x: x.numpy(), part))
            for part in zip(
                *[strategy.experimental_local_results(x) for x in tf.nest.flatten(element)],
                strict=True,
            )
        ]
        for element in (feed.next(iterator) for _ in range(count))
    ]


def numbers(*args, **options):
    """Return the numbers of each step, over all replicas."""
    return [
        np.concatenate([part[0] for part in step]).tolist() for step in batches(*args, **options)
    ]


def test_samples_of_a_step_are_the_same_on_any_number_of_replicas_and_from_any_step():
    assert numbers(1) == numbers(2) == numbers(4)
    assert numbers(2, step=2) == numbers(1, count=5)[2:]


def test_each_pass_has_every_example_once():
    flat = np.concatenate(numbers(2, count=5))
    assert sorted(flat[:10]) == sorted(flat[10:20]) == list(range(10))
    assert flat[:10].tolist() != flat[10:20].tolist()


def test_ids_count_positions_within_a_pass():
    ids = [np.concatenate([part[1] for part in step]).tolist() for step in batches(2, count=2)]
    assert np.concatenate(ids).tolist() == [position % 10 for position in range(24)]


@pytest.mark.slow
def test_continued_run_ends_with_the_bits_of_an_undisturbed_one(tmp_path):
    straight = finish(recipe(tmp_path / "straight", *NODES))
    finish(recipe(tmp_path / "stopped", *NODES), lambda run: run.step >= 3)
    assert_same_bits(straight, finish(recipe(tmp_path / "stopped", *NODES)))
