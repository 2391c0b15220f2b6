"""Requests to stop or save: what they mean, and signals, in a process since handlers are global."""

import itertools
import random
import signal
import subprocess
import sys

import pytest

from tests.support.processes import ROOT
from trainer.cluster.messages import Leave, SignalReceived
from trainer.cluster.signals import STOP, Decision, StopRequests
from trainer.cluster.spec import ProcessId

WORKER = ProcessId("worker", 1)
SOURCES = [None, WORKER, ProcessId("worker", 0)]
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


def test_second_ctrl_c_of_a_person_leaves_at_once():
    requests = StopRequests(is_attended=True)
    assert requests.hint() == ""
    assert requests.decide(SignalReceived(signal.SIGINT)) is Decision.STOP
    assert requests.hint() == "; again exits immediately"
    assert requests.decide(SignalReceived(signal.SIGTERM)) is Decision.IGNORE
    assert requests.decide(SignalReceived(signal.SIGINT), WORKER) is Decision.IGNORE
    assert requests.decide(SignalReceived(signal.SIGINT)) is Decision.LEAVE


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


def python(code, stream="stdout"):
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return getattr(done, stream)


def test_request_is_received_while_the_main_thread_runs_no_python():
    code = """
import ctypes, os, queue, signal, threading
from trainer.cluster.signals import Signals
received = queue.SimpleQueue()
def notify(number):
    received.put(number)
    os.write(writing, b"!")
reading, writing = os.pipe()
signals = Signals(notify)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    # Outside the interpreter, which restarts a read after a signal: no Python handler runs before.
    libc = ctypes.CDLL(None)
    while libc.read(reading, ctypes.create_string_buffer(1), 1) != 1:
        pass
    print(received.get(), signals.stop(), signals.save(), signals.save())
print(signals.number)
"""
    expected = ["10 False True False", "12 False True False", "15 True False False", "15"]
    assert python(code).splitlines() == expected


def test_child_of_a_worker_does_not_inherit_blocked_signals():
    code = """
import signal, subprocess, sys
from trainer.cluster.signals import Signals, blocked
with blocked():  # as its supervisor does
    signals = Signals(lambda number: None)
signals.unblock()
program = "print(flush=True); open('/dev/zero').read()"
child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
child.stdout.readline()
child.terminate()
print(child.wait(30))
"""
    assert python(code) == f"{-signal.SIGTERM}\n"


def test_stacks_are_written_at_any_time_and_a_save_ends_no_process_with_nothing_to_save():
    code = """
import os, signal
from trainer.cluster.signals import Signals, survive_saves
survive_saves()
for number in (signal.SIGUSR1, signal.SIGUSR2):
    os.kill(os.getpid(), number)
Signals(lambda number: None)
def here():
    os.kill(os.getpid(), signal.SIGQUIT)
here()
"""
    stacks = python(code, "stderr")
    assert "Current thread 0x" in stacks
    assert "in here" in stacks
