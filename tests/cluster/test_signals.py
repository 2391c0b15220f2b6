"""Signals and requests; those of a worker in a process of its own, since handlers are global."""

import signal
import subprocess
import sys

from tests.support.processes import ROOT

TIMEOUT_SECS = 60


def python(code: str, stream: str = "stdout") -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECS,
        check=False,
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
    assert python(code).splitlines() == [
        "10 False True False",
        "12 False True False",
        "15 True False False",
        "15",
    ]


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


def test_stacks_are_written_at_any_time():
    code = """
import os, signal
from trainer.cluster.signals import Signals
Signals(lambda number: None)
def here():
    os.kill(os.getpid(), signal.SIGQUIT)
here()
"""
    stacks = python(code, "stderr")
    assert "Current thread 0x" in stacks
    assert "in here" in stacks


def test_save_request_ends_no_process_that_has_nothing_to_save():
    code = """
import os, signal
from trainer.cluster.signals import survive_saves
survive_saves()
for number in (signal.SIGUSR1, signal.SIGUSR2):
    os.kill(os.getpid(), number)
print("alive")
"""
    assert python(code) == "alive\n"
