"""When things happen: epochs, intervals and retention, compared with brute force."""

import itertools

import pytest

from trainer.policies import Best, Elapsed, Epochs, EveryNth, Interval, Newest, Saved, keep_policies, to_remove
from trainer.schema import Best as BestOptions
from trainer.schema import Checkpoint, Train

SHAPES = [(10, 5), (10, 3), (10, 10), (10, 4), (7, 16), (2, 5), (1, 1), (1, 8), (3, 2), (1437, 128), (100, 99)]


@pytest.mark.parametrize(("num_examples", "global_size"), SHAPES)
def test_an_epoch_is_complete_at_the_first_step_by_which_its_pass_is(num_examples, global_size):
    epochs = Epochs(num_examples, global_size)
    for epoch in range(40):
        end = epochs.end(epoch)
        assert end * global_size >= (epoch + 1) * num_examples
        assert (end - 1) * global_size < (epoch + 1) * num_examples


@pytest.mark.parametrize("epochs", [*(Epochs(*shape) for shape in SHAPES), Epochs(60_000, 64, 70), Epochs(10, 5, 1), Epochs(2, 5, 3)])
def test_end_completed_and_ends_at_agree(epochs):
    ends = [epochs.end(epoch) for epoch in range(400)]
    assert ends == sorted(ends)
    for step in range(min(150, ends[-1])):
        assert epochs.completed(step) == sum(end <= step for end in ends)
        assert epochs.ends_at(step) == (step in ends)


def test_known_epochs():
    epochs = Epochs(num_examples=1437, global_size=128)
    assert [epochs.end(epoch) for epoch in range(3)] == [12, 23, 34]
    assert [epochs.completed(step) for step in (0, 11, 12, 22, 23)] == [0, 0, 1, 1, 2]


def test_a_fixed_number_of_steps_replaces_the_pass():
    epochs = Epochs(num_examples=60_000, global_size=64, steps_per_epoch=70)
    assert [epochs.end(epoch) for epoch in range(3)] == [70, 140, 210]
    assert [epochs.completed(step) for step in (0, 69, 70, 139, 140)] == [0, 0, 1, 1, 2]
    assert [step for step in range(211) if epochs.ends_at(step)] == [70, 140, 210]


@pytest.mark.parametrize(
    ("epochs", "train", "steps"),
    [
        (Epochs(10, 3), Train(steps=17, epochs=None), 17),
        (Epochs(10, 3), Train(epochs=1), 4),
        (Epochs(10, 3), Train(epochs=3), 10),
        (Epochs(2, 5), Train(epochs=5), 2),
        (Epochs(60_000, 64, 70), Train(epochs=12), 840),
    ],
)
def test_total_steps(epochs, train, steps):
    assert epochs.total_steps(train) == steps


@pytest.mark.parametrize("shape", [*SHAPES, (60_000, 64, 7)])
def test_next_after_is_the_first_step_that_is_due(shape):
    epochs = Epochs(*shape)
    for every_steps, every_epochs, total in itertools.product((None, 1, 4, 7), (None, 1, 2, 3, 5), (1, 5, 30)):
        interval = Interval(epochs, total, every_steps, every_epochs)
        due = [step for step in range(total + 1) if interval.due(step)]
        assert 0 not in due
        assert due[-1] == total
        for step in range(total):
            assert interval.next_after(step) == min(t for t in due if t > step), (every_steps, every_epochs, total, step)


def test_an_epoch_interval_is_due_when_a_multiple_is_passed_within_a_step():
    interval = Interval(Epochs(num_examples=2, global_size=5), total_steps=100, every_epochs=2)
    # After 1, 2, 3 and 4 steps 2, 5, 7 and 10 epochs are complete: multiples of two were passed in each of them.
    assert [step for step in range(1, 5) if interval.due(step)] == [1, 2, 3, 4]


def test_past_the_end_everything_is_due():
    interval = Interval(Epochs(10, 5), total_steps=6, every_steps=4)
    assert [step for step in range(10) if interval.due(step)] == [4, 6, 7, 8, 9]


def test_known_intervals():
    epochs = Epochs(10, 5)
    assert [step for step in range(12) if Interval(epochs, 11, every_steps=4).due(step)] == [4, 8, 11]
    assert [step for step in range(12) if Interval(epochs, 11, every_epochs=2).due(step)] == [4, 8, 11]
    assert [step for step in range(12) if Interval(epochs, 11, 5, 3).due(step)] == [5, 6, 10, 11]
    assert [step for step in range(12) if Interval(epochs, 11).due(step)] == [11]


def saved(*steps, **accuracies):
    return [Saved(step, {"accuracy": accuracies[f"at_{step}"]} if f"at_{step}" in accuracies else {}) for step in steps]


@pytest.mark.parametrize(
    ("steps", "policies", "removed"),
    [
        ([], [Newest(2)], []),
        ([5], [Newest(1)], []),
        ([1, 2, 3], [Newest(2)], [1]),
        ([1, 2], [Newest(5)], []),
        ([1, 2, 3], [], []),
        ([1, 2, 3, 4], [Newest(2), EveryNth(1)], []),
        ([1, 2, 3, 4, 5], [Newest(1), EveryNth(2)], [1, 3]),
        ([1, 2, 3, 4], [Newest(2), Best("accuracy", "max", 1)], [2]),
        ([1, 2, 3, 4], [Newest(2), Best("accuracy", "min", 1)], [1]),
    ],
)
def test_what_no_policy_keeps_is_removed(steps, policies, removed):
    assert to_remove(saved(*steps, at_1=0.9, at_2=0.5, at_4=0.7), policies) == removed


def test_of_equally_good_ones_the_earlier_is_kept():
    assert Best("accuracy", "max", 2).ranked(saved(1, 2, 3, at_1=0.5, at_2=0.7, at_3=0.7)) == [2, 3]
    assert Best("accuracy", "max", 1).ranked(saved(1, 2, 3, at_1=0.5, at_2=0.7, at_3=0.7)) == [2]


def test_a_configuration_selects_policies():
    assert keep_policies(Checkpoint()) == [Newest(2)]
    chosen = Checkpoint(keep=3, keep_every_steps=100, best=BestOptions(metric="loss", mode="min", keep=4))
    assert keep_policies(chosen) == [Newest(3), EveryNth(100), Best("loss", "min", 4)]


def test_a_clock_is_due_when_its_time_has_gone_by_since_the_last_save():
    now = [100.0]
    elapsed = Elapsed(30.0, lambda: now[0])
    due = []
    for now[0] in (129.9, 130.0, 131.0):
        due.append(elapsed.due())
    elapsed.restart()
    now[0] = 160.9
    assert [*due, elapsed.due()] == [False, True, True, False]
    assert not Elapsed(None, lambda: now[0]).due()
