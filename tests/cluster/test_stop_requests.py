"""What stop and save requests mean: examples, and every short sequence of signals."""

import itertools
import random
import signal

import pytest

from trainer.cluster.messages import Leave, SignalReceived
from trainer.cluster.spec import ProcessId
from trainer.cluster.stop_requests import STOP, SWEEP, Decision, StopRequests

WORKER = ProcessId("worker", 1)
SOURCES = [None, WORKER, ProcessId("worker", 0)]
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


def test_second_ctrl_c_of_a_person_leaves_at_once():
    requests = StopRequests(is_attended=True)
    assert requests.hint() == ""
    assert requests.decide(SignalReceived(signal.SIGINT)) is Decision.STOP
    assert requests.hint() == "; once more leaves at once"
    assert requests.decide(SignalReceived(signal.SIGTERM)) is Decision.IGNORE
    assert requests.decide(SignalReceived(signal.SIGINT), WORKER) is Decision.IGNORE
    assert requests.decide(SignalReceived(signal.SIGINT)) is Decision.LEAVE


def test_sweep_can_have_its_points_leave_at_once():
    requests = StopRequests()
    assert requests.decide(SignalReceived(signal.SIGTERM), SWEEP) is Decision.STOP
    assert requests.decide(Leave(), SWEEP) is Decision.LEAVE


def check(sequence, is_attended):
    """Check what a sequence of signals comes to, against the promise in words."""
    requests = StopRequests(is_attended=is_attended)
    decisions = [requests.decide(SignalReceived(number), source) for number, source in sequence]
    typed = sequence.count((signal.SIGINT, None)) if is_attended else 0
    stops = [number for number, _ in sequence if number in STOP]
    assert decisions.count(Decision.STOP) == (1 if stops else 0)
    assert decisions.count(Decision.LEAVE) == max(0, typed - 1)
    assert decisions.count(Decision.SAVE) == len(sequence) - len(stops)
    assert requests.number == (stops[0] if stops else 0)
    assert requests.is_leaving == (Decision.LEAVE in decisions)
    if Decision.LEAVE in decisions:
        assert decisions.index(Decision.STOP) < decisions.index(Decision.LEAVE)


@pytest.mark.parametrize("is_attended", [True, False])
def test_every_short_storm_of_signals_saves_once_or_leaves(is_attended):
    # SIGCONT has no handler, and needs none.
    signals = list(itertools.product(NUMBERS, SOURCES))
    for length in range(1, 4):
        for sequence in itertools.product(signals, repeat=length):
            check(list(sequence), is_attended)
    generator = random.Random(0)
    for _ in range(3000):
        check(generator.choices(signals, k=generator.randint(4, 6)), is_attended)


def test_pending_requests_are_taken_in_order_and_wake_their_reader():
    requests = StopRequests()
    wakes = []
    requests.request(signal.SIGUSR1)
    with requests.waking(lambda: wakes.append(1)):
        requests.put(Leave(), WORKER)
    requests.request(signal.SIGINT)
    assert len(wakes) == 1
    assert requests.take() == (SignalReceived(signal.SIGUSR1), None)
    assert requests.drain() == signal.SIGINT
    assert requests.is_leaving
    assert requests.take() is None
