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


WINDOW = {"start": 4, "steps": 3}


@pytest.mark.parametrize(
    ("window", "steps", "expected"),
    [
        (WINDOW, [0, 4, 5, 7, 9], [(0, 4), "start", (4, 5), (5, 7), "stop", (7, 9)]),
        (WINDOW, [0, 4, 6], [(0, 4), "start", (4, 6), "stop"]),  # what is there is kept
        (WINDOW, [5, 7, 9], [(5, 7), (7, 9)]),
        (WINDOW, [0, 2], [(0, 2)]),
        ({}, [0, 4, 6], [(0, 4), (4, 6)]),
    ],
)
def test_profiler_records_the_window_alone(make, calls, window, steps, expected):
    assert boundary_steps(Profile(**window)) == ({4, 7} if window else frozenset())
    assert drive(make(**window), calls, steps) == expected
