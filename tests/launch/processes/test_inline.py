"""launch=inline in this process: what it leaves behind."""

import signal
import threading

from tests.support.command_line import run_here

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def handlers():
    wakeup_fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup_fd)
    return wakeup_fd, [signal.getsignal(number) for number in SIGNALS]


def test_inline_run_gives_the_signals_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    before = handlers()
    outcome = run_here("launch=inline", "model=softmax", "init_from=empty")
    assert outcome.code == 2, outcome
    assert handlers() == before
    for thread in threading.enumerate():
        if thread.name == "signals":
            thread.join(60)
            assert not thread.is_alive()
