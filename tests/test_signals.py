"""Signals that a worker gets, in processes of their own: this one is to keep its handlers."""

import queue
import signal
import subprocess
import sys
from types import SimpleNamespace

from tests.processes import ROOT
from trainer import signals
from trainer.cli import compose
from trainer.cluster import Cluster
from trainer.process import WorkerProcess

TIMEOUT_SECS = 60


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_request_is_noticed_and_told_while_the_main_thread_runs_no_python():
    code = """
import ctypes, os, queue, signal, threading
from trainer.signals import Signals
told = queue.SimpleQueue()
def tell(number):
    told.put(number)
    os.write(writing, b"!")
reading, writing = os.pipe()
signals = Signals(tell)
for number in (signal.SIGUSR1, signal.SIGTERM):
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    # Outside the interpreter: it begins again after a signal, so that no handler of Python's runs before it has read.
    libc = ctypes.CDLL(None)
    while libc.read(reading, ctypes.create_string_buffer(1), 1) != 1:
        pass
    print(told.get(), signals.stop(), signals.save(), signals.save())
print(signals.number)
"""
    assert python(code).splitlines() == ["10 False True False", "15 True False False", "15"]


def test_what_a_worker_starts_can_be_ended():
    code = """
import signal, subprocess, sys
from trainer.signals import Signals, held
with held():  # as its supervisor does
    signals = Signals(lambda number: None)
signals.let_in()
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); open('/dev/zero').read()"], stdout=subprocess.PIPE)
child.stdout.readline()
child.terminate()
print(child.wait(30))
"""
    assert python(code) == f"{-signal.SIGTERM}\n"


def test_stacks_are_written_at_any_time():
    code = """
import os, signal
from trainer.signals import Signals
Signals(lambda number: None)
def here():
    os.kill(os.getpid(), signal.SIGUSR2)
here()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECS, check=True)
    assert "Current thread 0x" in done.stderr
    assert "in here" in done.stderr


def test_signals_are_held_back_only_as_long_as_asked():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with signals.held():
        assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2} <= signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_signals_in_the_first_moment_of_a_worker_neither_kill_it_nor_are_lost(tmp_path):
    worker, messages = WorkerProcess(), queue.SimpleQueue()
    try:
        worker.signal(signal.SIGUSR2)
        worker.signal(signal.SIGTERM)
        with (tmp_path / "lock").open("w") as lock:
            worker.assign(SimpleNamespace(path=tmp_path, lock=lock.fileno()), compose([]), Cluster(), messages)
            assert messages.get(timeout=TIMEOUT_SECS) == {"kind": "signal", "number": signal.SIGTERM, "from": Cluster().task}
    finally:
        worker.discard()
