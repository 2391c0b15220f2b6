"""How often a run is restarted, and what a signal between two attempts does."""

import itertools
import os
import signal
from types import SimpleNamespace

import pytest

from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster
from trainer.cluster.stop_requests import SWEEP, StopRequests
from trainer.errors import RESTARTABLE
from trainer.launch.run_context import Command, RunContext
from trainer.launch.supervision import supervisor
from trainer.launch.supervision.attempt import Failure
from trainer.launch.supervision.supervisor import RestartBudget, Supervisor
from trainer.runs.ledger import Ledger
from trainer.strategies.strategy import Strategy


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def create_supervisor(run_dir, console, *options, stop_requests=None, members=()):
    context = RunContext(
        Command(compose(list(options))),
        Strategy(),
        SimpleNamespace(path=run_dir, check_lock=lambda: None),
        console,
        stop_requests or StopRequests(),
    )
    return Supervisor(context, lambda: list(members), lambda process_id: None, Ledger(run_dir))


@pytest.fixture
def supervise(run_dir, monkeypatch):
    """Simulate attempts, each of which saves at some steps and ends with a code."""

    def simulate(attempts, *options, stopped_by=0):
        remaining = list(attempts)
        lines = []
        waits = []

        class FakeAttempt:
            has_begun = True

            def __init__(self, *arguments):
                pass

            def wake(self):
                pass

            def run(self):
                steps, code = remaining.pop(0)
                for step in steps:
                    (run_dir / "checkpoints" / f"ckpt-{step}.json").touch()
                self.code = code
                return code

            def stopped_by(self):
                return stopped_by

            def failure(self):
                if self.code:
                    return Failure("worker-1", "was killed by SIGKILL", run_dir / "worker-1.log")
                return None

        monkeypatch.setattr(supervisor, "Attempt", FakeAttempt)
        console = SimpleNamespace(line=lines.append, error=lines.append, cause="")
        instance = create_supervisor(run_dir, console, *options)
        monkeypatch.setattr(instance, "_wait", lambda secs: waits.append(secs) or 0)
        code = instance.supervise()
        assert not remaining
        return code, waits, lines

    return simulate


def test_restarts_end_with_the_budget_and_their_pauses_double(supervise):
    code, waits, lines = supervise([([], -9), ([], RESTARTABLE), ([], -9), ([], -9)])
    assert (code, waits) == (1, [0.0, 1.0, 2.0])
    assert lines[-1].startswith(
        "gave up after 3 restarts (restart.max_restarts): worker-1 was killed by SIGKILL; "
        "the log is "
    )
    assert lines[0].startswith("warning: worker-1 was killed by SIGKILL; its log is ")


def test_budget_is_renewed_by_every_newer_checkpoint(supervise):
    failing = [
        ([], -9),
        ([], -9),
        ([5], -9),
        ([], -9),
        ([], -9),
        ([6, 7], -9),
        ([7], -9),
        ([3], -9),
        ([], 0),
    ]
    code, waits, _ = supervise(failing)
    assert (code, waits) == (0, [0.0, 1.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0])


def test_frequent_restarts_of_a_run_that_advances_are_counted_in_a_warning(supervise):
    attempts = [([step], -9) for step in range(1, 6)]
    code, waits, lines = supervise([*attempts, ([6], 0)], "restart.max_restarts=3")
    assert (code, waits) == (0, [0.0] * 5)
    warnings = [line for line in lines if "within an hour" in line]
    assert [line.partition(":")[2].partition(":")[0] for line in warnings] == [
        f" restart {number} of this command, {number} within an hour" for number in (4, 5)
    ]


def test_restarts_of_other_hours_are_not_counted_as_frequent():
    hours = itertools.count()
    budget = RestartBudget(itertools.count().__next__, 3, clock=lambda: 3600.0 * next(hours))
    assert [(budget.spend(), budget.warning()) for _ in range(9)] == [(True, "")] * 9


def test_checkpoints_of_earlier_commands_do_not_renew_the_budget(supervise, run_dir):
    (run_dir / "checkpoints" / "ckpt-9.json").touch()
    assert supervise([([], -9), ([], -9)], "restart.max_restarts=1")[:2] == (1, [0.0])


@pytest.mark.parametrize("code", [0, 1, 2, 130, 143])
def test_attempt_that_was_neither_killed_nor_lost_peers_is_not_restarted(supervise, code):
    assert supervise([([], code)]) == (code, [], [])


def test_stop_that_could_not_save_is_an_error(supervise):
    code, waits, lines = supervise([([4], -9)], stopped_by=signal.SIGTERM)
    assert (code, waits) == (1, [])
    assert lines[-1] == "left without saving; the newest checkpoint is that of step 4"


def test_requests_of_a_sweep_and_signals_of_the_user_have_different_sources(run_dir, monkeypatch):
    stop_requests = StopRequests()
    received = []

    class SignaledAttempt:
        has_begun = True

        def __init__(self, *arguments):
            pass

        def wake(self):
            received.append(stop_requests.take())

        def run(self):
            stop_requests.request(signal.SIGTERM, SWEEP)
            os.kill(os.getpid(), signal.SIGTERM)
            return 143

        def failure(self):
            return None

    monkeypatch.setattr(supervisor, "Attempt", SignaledAttempt)
    instance = create_supervisor(run_dir, SimpleNamespace(), stop_requests=stop_requests)
    assert instance.supervise() == 143
    assert received == [(signal.SIGTERM, SWEEP), (signal.SIGTERM, None)]


def test_restart_takes_the_attempt_that_was_started_ahead(run_dir, monkeypatch):
    events = []

    class AheadAttempt:
        has_begun = True
        count = 0

        def __init__(self, context, members, start, may_replace, memories, standby):
            AheadAttempt.count += 1
            self.name = AheadAttempt.count
            self.members = members
            self.standby = standby

        def prepare(self):
            events.append(f"{self.name} is prepared")

        def resident_bytes(self):
            return 0

        def is_usable(self, process_ids):
            return True

        def run(self):
            events.append(f"{self.name} runs")
            if self.name < 3:
                self.standby.start(self)
            return -9 if self.name == 1 else 0

        def discard(self):
            events.append(f"{self.name} is discarded")

        def wake(self):
            pass

        def stopped_by(self):
            return 0

        def failure(self):
            return Failure("worker-0", "was killed", run_dir) if self.name == 1 else None

    monkeypatch.setattr(supervisor, "Attempt", AheadAttempt)
    console = SimpleNamespace(line=lambda text: None, cause="")
    instance = create_supervisor(run_dir, console, members=[Cluster()])
    assert instance.supervise() == 0
    assert events == [
        *("1 runs", "2 is prepared", "2 runs", "3 is prepared", "3 is discarded"),
    ]


def test_stop_request_ends_the_wait_before_a_restart(run_dir):
    console = SimpleNamespace(line=lambda text: None, cause="")
    stop_requests = StopRequests()
    instance = create_supervisor(run_dir, console, stop_requests=stop_requests)
    assert instance._wait(0.0) == 0
    stop_requests.request(signal.SIGUSR1)
    stop_requests.request(signal.SIGTERM)
    assert instance._wait(60.0) == signal.SIGTERM


def test_pauses_end_at_a_limit_of_five_minutes(supervise):
    failing = [([], -9)] * 2001
    code, waits, _ = supervise(failing, "restart.max_restarts=2000")
    assert (code, waits[9], waits[10], waits[-1]) == (1, 256.0, 300.0, 300.0)
    longer = ("restart.max_restarts=2", "restart.backoff_secs=400")
    assert supervise(failing[:3], *longer)[1] == [0.0, 400.0]
