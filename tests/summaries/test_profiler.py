"""The profiler records its window and nothing else, and its errors are warnings."""

import itertools

import pytest
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.config.schema import Profile
from trainer.summaries.profiler import Profiler, boundary_steps


@pytest.fixture
def lines():
    return []


@pytest.fixture
def make(tmp_path, lines):
    channel = Channel(lambda message: lines.append(message.text))
    return lambda **window: Profiler(Profile(**window), tmp_path, channel)


@pytest.fixture
def calls(monkeypatch):
    """Replace TensorFlow's profiler by a recorder of its calls."""
    recorded = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: recorded.append("start"))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: recorded.append("stop"))
    return recorded


def drive(profiler, calls, steps):
    """Run calls that end at these steps; return them and the calls of TensorFlow's profiler."""
    for before, after in itertools.pairwise(steps):
        profiler.before(before)
        calls.append((before, after))
        profiler.after(after)
    profiler.close()
    return calls


def test_profiler_records_the_window(make, calls):
    assert boundary_steps(Profile(start=4, steps=3)) == {4, 7}
    assert drive(make(start=4, steps=3), calls, [0, 4, 5, 7, 9]) == [
        (0, 4),
        "start",
        (4, 5),
        (5, 7),
        "stop",
        (7, 9),
    ]


@pytest.mark.parametrize("steps", [[5, 7, 9], [0, 2]])
def test_profiler_records_nothing_unless_the_run_reaches_the_start(make, calls, steps):
    assert not {"start", "stop"} & set(drive(make(start=4, steps=3), calls, steps))


def test_profiler_keeps_an_incomplete_window(make, calls):
    assert drive(make(start=4, steps=3), calls, [0, 4, 6]) == [(0, 4), "start", (4, 6), "stop"]


def test_boundary_steps_are_empty_without_a_window(make, calls):
    assert boundary_steps(Profile()) == frozenset()
    assert drive(make(), calls, [0, 4, 6]) == [(0, 4), (4, 6)]


@pytest.mark.parametrize("function", ["start", "stop"])
def test_profiler_warns_of_an_error(make, lines, calls, monkeypatch, function):
    def fail(*args):
        raise tf.errors.AlreadyExistsError(None, None, "Another profiler is running.\nmore")

    monkeypatch.setattr(tf.profiler.experimental, function, fail)
    drive(make(start=0, steps=1), calls, [0, 1, 2])
    assert lines == ["warning: the profiler failed: Another profiler is running."]
