"""Whether a process whose step has failed holds the state before that step."""

import pytest
import tensorflow as tf

from trainer.engine.graph.exchange.exchange_timer import UNSAVED
from trainer.engine.graph.step.step_boundary import StepBoundary


class Loop:
    """A loop over steps, each of which may fail where it would add up over the processes.

    Attributes:
        early: called in a step before its sum, `late` after its update has begun.
    """

    def __init__(self, early=lambda: None, late=lambda x: None, updates=1):
        self.boundary = StepBoundary(captures_updates=True)
        self.step = tf.Variable(0, dtype=tf.int64)
        self.weight = tf.Variable(0.0)
        self.early, self.late, self.updates = early, late, updates

    @tf.function(autograph=False)
    def run(self, count, fails_at, fails_late_at, diverges_at):
        def one_step(index, diverged):
            (index,) = self.boundary.reach(
                (index,), diverged, lambda: self.step.assign(index, read_value=False)
            )
            self.early()
            x = failing(tf.cast(index, tf.float32) + 1.0, index, fails_at)
            for _ in range(self.updates):
                x = self.boundary.begin_update(index, x)
                self.late(x)
                self.weight.assign_add(failing(x, index, fails_late_at))
            return index + 1, tf.where(index == diverges_at, index, diverged)

        never = tf.constant(-1, tf.int64)
        end, _ = tf.while_loop(lambda i, _: i < count, one_step, (self.step.read_value(), never))
        self.step.assign(end)

    def go(self, count, fails_at=-1, fails_late_at=-1, diverges_at=-1):
        """Run up to a step; return whether the state of the last step that was reached is whole."""
        arguments = [
            tf.constant(x, tf.int64) for x in (count, fails_at, fails_late_at, diverges_at)
        ]
        self.run.get_concrete_function(*arguments)
        self.boundary.examine()
        try:
            self.run(*arguments)
        except tf.errors.OpError:
            assert max(fails_at, fails_late_at) >= 0
        return self.boundary.is_at(int(self.step.numpy()))


def failing(x, index, at):
    def fail(x, index, at):
        if index == at:
            raise ConnectionError("a peer has gone")
        return x

    value = tf.py_function(fail, (x, index, at), tf.float32)
    value.set_shape(x.shape)
    return value


def test_state_between_two_calls_is_whole():
    loop = Loop()
    assert loop.go(3)
    assert (loop.step.numpy(), loop.weight.numpy()) == (3, 6.0)


def test_process_whose_sum_fails_holds_the_state_before_that_step():
    loop = Loop()
    assert loop.go(9, fails_at=2)
    assert (loop.step.numpy(), loop.weight.numpy()) == (2, 3.0)
    assert loop.go(9, fails_at=5)
    assert (loop.step.numpy(), loop.weight.numpy()) == (5, 15.0)


@pytest.mark.parametrize("updates", [1, 2])
def test_update_that_was_begun_leaves_no_whole_state(updates):
    assert not Loop(updates=updates).go(9, fails_late_at=2)


def test_step_that_has_diverged_leaves_no_sound_state():
    loop = Loop()
    assert not loop.go(9, fails_at=4, diverges_at=3)
    assert loop.go(12)


def test_state_is_unknown_before_the_step_is_examined():
    assert not StepBoundary(captures_updates=True).is_at(0)


def scoped(write):
    def in_scope():
        with tf.name_scope(UNSAVED):
            write()

    return in_scope


def in_branch(write):
    def branch():
        write()
        return tf.constant(0)

    return lambda: tf.cond(tf.random.uniform([]) < 2.0, branch, lambda: tf.constant(0))


@pytest.mark.parametrize(
    ("wrap", "is_known"), [(lambda write: write, False), (in_branch, False), (scoped, True)]
)
def test_state_that_changes_before_the_sum_is_not_known_to_be_whole(wrap, is_known):
    other = tf.Variable(0.0)
    assert Loop(early=wrap(lambda: other.assign_add(1.0))).go(9, fails_at=2) == is_known
    assert Loop(late=other.assign_add).go(9, fails_at=2)


def test_step_that_never_tells_of_its_update_is_not_known_to_be_whole():
    assert not Loop(updates=0).go(9, fails_at=2)
