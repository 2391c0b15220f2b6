"""How often a run is started again, and what a signal between two attempts does."""

import os
import signal
from collections import deque
from types import SimpleNamespace

import pytest

from trainer import supervisor
from trainer.cli import compose
from trainer.cluster import Task
from trainer.crash import Failure
from trainer.exitcodes import RESTARTABLE
from trainer.group import SWEEP
from trainer.ledger import Ledger
from trainer.strategies.base import Strategy
from trainer.supervisor import Supervisor


@pytest.fixture
def supervise(tmp_path, monkeypatch):
    """Plays attempts, each of which saves at some steps and ends with a code."""
    (tmp_path / "checkpoints").mkdir()

    def play(attempts, *options, stopped_by=0, failures=None):
        left, said, waited = list(attempts), [], []

        class Played:
            failed, why = Task("worker", 1), "was killed by SIGKILL"

            def __init__(self, *arguments):
                self.may_replace = arguments[-1]

            def run(self):
                steps, code = left.pop(0)
                for step in steps:
                    (tmp_path / "checkpoints" / f"ckpt-{step}.json").touch()
                return code

            def stopped_by(self):
                return stopped_by

            def failure(self):
                return Failure("worker-1", f"failed with {len(left)} to come", tmp_path)

        monkeypatch.setattr(supervisor, "Group", Played)
        console = SimpleNamespace(line=said.append, error=said.append, cause="")
        made = Supervisor(SimpleNamespace(path=tmp_path), compose(list(options)), Strategy(), list, console, lambda: None, Ledger(tmp_path))
        monkeypatch.setattr(made, "_wait", lambda secs: waited.append(secs) or 0)
        code = made.supervise()
        assert not left
        if failures is not None:
            failures += made.failures
        return code, waited, said

    return play


def test_the_budget_ends_and_the_pauses_double(supervise):
    code, waited, said = supervise([([], -9), ([], RESTARTABLE), ([], -9), ([], -9)])
    assert (code, waited) == (1, [1.0, 2.0, 4.0])
    assert said[-1].startswith("gave up after 3 restarts (restart.max_restarts): worker-1 was killed by SIGKILL; the log is ")
    assert said[0].startswith("warning: worker-1 was killed by SIGKILL; its log is ")


def test_how_each_attempt_failed_is_kept(supervise):
    failures = []
    supervise([([], -9), ([], RESTARTABLE), ([], 1)], failures=failures)
    assert [failure.how for failure in failures] == [f"failed with {count} to come" for count in (2, 1, 0)]


def test_the_budget_is_renewed_by_every_newer_checkpoint(supervise):
    failing = [([], -9), ([], -9), ([5], -9), ([], -9), ([], -9), ([6, 7], -9), ([7], -9), ([3], -9), ([], 0)]
    code, waited, _ = supervise(failing)
    assert (code, waited) == (0, [1.0, 2.0, 1.0, 2.0, 4.0, 1.0, 2.0, 4.0])


def test_checkpoints_that_were_there_before_are_no_progress(supervise, tmp_path):
    (tmp_path / "checkpoints" / "ckpt-9.json").touch()
    assert supervise([([], -9), ([], -9)], "restart.max_restarts=1")[:2] == (1, [1.0])


@pytest.mark.parametrize("code", [0, 1, 2, 130, 143])
def test_what_is_nobodys_accident_is_not_started_again(supervise, code):
    assert supervise([([], code)]) == (code, [], [])


def test_none_may_be_started_again(supervise):
    assert supervise([([4], -9)], "restart.max_restarts=0")[:2] == (1, [])


def test_a_stop_that_came_to_nothing_says_so(supervise):
    code, waited, said = supervise([([4], -9)], stopped_by=signal.SIGTERM)
    assert (code, waited) == (1, [])
    assert said[-1] == "left without saving; the newest checkpoint is that of step 4"


def test_a_signal_that_a_sweep_asked_for_is_told_from_the_users(tmp_path, monkeypatch):
    heard, asked = [], deque([signal.SIGTERM])

    class Signalled:
        def __init__(self, *arguments):
            pass

        def run(self):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            return 143

        def failure(self):
            return None

        def signal(self, number, source):
            heard.append((number, source))

    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(supervisor, "Group", Signalled)
    run = SimpleNamespace(path=tmp_path)
    made = Supervisor(run, compose([]), Strategy(), list, SimpleNamespace(), lambda: None, Ledger(tmp_path), asked)
    assert made.supervise() == 143
    assert heard == [(signal.SIGTERM, SWEEP), (signal.SIGTERM, None)]
