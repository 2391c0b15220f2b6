"""The profiler records its window and nothing else, and what goes wrong with it harms nobody."""

import itertools

import pytest
import tensorflow as tf

from trainer.channel import Channel
from trainer.profiler import Profiler, borders
from trainer.schema import Profile


@pytest.fixture
def told():
    return []


@pytest.fixture
def make(tmp_path, told):
    channel = Channel(lambda message: told.append(message["text"]))
    return lambda **window: Profiler(Profile(**window), tmp_path, channel)


@pytest.fixture
def calls(monkeypatch):
    """Puts something in the place of TensorFlow's profiler that notes when it is called."""
    found = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: found.append("start"))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: found.append("stop"))
    return found


def drive(profiler, calls, steps):
    """Runs calls that end at these steps; gives what was asked of TensorFlow, and between which of them."""
    for before, after in itertools.pairwise(steps):
        profiler.before(before)
        calls.append((before, after))
        profiler.after(after)
    profiler.close()
    return calls


def test_a_recording_is_where_the_plugin_looks(tmp_path, make, told):
    profiler = make(start=3, steps=2)
    profiler.before(3)
    tf.reduce_sum(tf.random.stateless_normal([64, 64], seed=[1, 2])).numpy()
    profiler.after(5)
    assert told == [f"The profile from step 3 on is in {tmp_path / 'plugins' / 'profile'}."]
    assert [file.stat().st_size > 0 for file in (tmp_path / "plugins" / "profile").glob("*/*.xplane.pb")] == [True]


def test_the_window_is_recorded_whatever_the_calls(make, calls):
    assert borders(Profile(start=4, steps=3)) == {4, 7}
    assert drive(make(start=4, steps=3), calls, [0, 4, 5, 7, 9]) == [(0, 4), "start", (4, 5), (5, 7), "stop", (7, 9)]


@pytest.mark.parametrize("steps", [[5, 7, 9], [7, 9], [9, 10], [0, 2]])
def test_a_run_that_does_not_come_to_the_beginning_records_nothing(make, calls, steps):
    assert not {"start", "stop"} & set(drive(make(start=4, steps=3), calls, steps))


def test_a_run_that_ends_in_the_window_keeps_what_there_is(make, calls):
    assert drive(make(start=4, steps=3), calls, [0, 4, 6]) == [(0, 4), "start", (4, 6), "stop"]


def test_without_a_window_there_is_nothing_to_stop_for(make, calls):
    assert borders(Profile()) == frozenset()
    assert drive(make(), calls, [0, 4, 6]) == [(0, 4), (4, 6)]


@pytest.mark.parametrize("what", ["start", "stop"])
def test_a_failure_is_a_warning(make, told, calls, monkeypatch, what):
    def fail(*args):
        raise tf.errors.AlreadyExistsError(None, None, "Another profiler is running.\nmore")

    monkeypatch.setattr(tf.profiler.experimental, what, fail)
    drive(make(start=0, steps=1), calls, [0, 1, 2])
    assert told == ["warning: the profiler failed: Another profiler is running."]
