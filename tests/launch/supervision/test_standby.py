"""When the next attempt is started ahead, and what becomes of it."""

from types import SimpleNamespace

import pytest

from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster, ProcessId
from trainer.launch.run_context import Command, RunContext
from trainer.launch.supervision import attempt
from trainer.launch.supervision.attempt import Standby, is_possible
from trainer.strategies.select import select_strategy

MEMBERS = [
    *(Cluster(ProcessId("worker", index), {"worker": ["old:1", "old:2"]}) for index in (0, 1)),
    Cluster(ProcessId("evaluator", 0)),
]
IDS = [member.process_id for member in MEMBERS]
NEVER = float("inf")


class FakeAttempt:
    def __init__(self, members=MEMBERS, error=None, size=100):
        self.members = members
        self.error = error
        self.size = size
        self.events = []

    def prepare(self):
        self.events.append("prepared")
        if self.error:
            raise self.error

    def resident_bytes(self):
        return self.size

    def is_usable(self, process_ids):
        return process_ids == IDS

    def discard(self):
        self.events.append("discarded")


@pytest.fixture
def clock():
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def make(clock, monkeypatch):
    """Return a standby of a policy, and the attempts that it has created."""
    monkeypatch.setattr(attempt, "available_bytes", lambda: 300)

    def make(policy, error=None):
        attempts = []

        def create(members):
            attempts.append(FakeAttempt(members, error))
            return attempts[-1]

        return Standby(policy, create, lambda: clock.now), attempts

    return make


def test_short_runs_do_without_and_later_attempts_get_one_soon(make, clock):
    instance, _ = make("auto")
    instance.expect()
    assert instance.due_at == clock.now + 30
    clock.now += 10
    instance.expect()  # a second sign of the same training
    assert instance.due_at == clock.now + 20
    instance.renew()
    assert instance.due_at == NEVER
    instance.expect()
    assert instance.due_at == clock.now + 2


@pytest.mark.parametrize(("policy", "secs"), [("always", 0.0), ("never", NEVER)])
def test_policy_decides_when_it_is_due(make, clock, policy, secs):
    instance, _ = make(policy)
    instance.expect()
    assert instance.due_at == clock.now + secs


def test_it_has_the_same_processes_at_other_addresses_and_is_taken_once(make):
    instance, attempts = make("auto")
    instance.start(FakeAttempt())
    (attempt,) = attempts
    assert [member.process_id for member in attempt.members] == IDS
    assert not {"old:1", "old:2"} & set(attempt.members[0].jobs["worker"])
    assert instance.take(IDS) is attempt
    assert instance.take(IDS) is None
    assert attempt.events == ["prepared"]


def test_one_that_does_not_fit_or_has_ended_is_discarded(make):
    instance, attempts = make("auto")
    instance.start(FakeAttempt())
    assert instance.take(IDS[:1]) is None
    assert attempts[0].events == ["prepared", "discarded"]


@pytest.mark.parametrize(("policy", "count"), [("auto", 0), ("always", 1)])
def test_half_of_the_free_memory_limits_it_unless_it_is_wanted_always(make, policy, count):
    instance, attempts = make(policy)
    instance.start(FakeAttempt(size=151))
    assert len(attempts) == count


def test_one_that_cannot_be_started_is_no_error(make):
    instance, attempts = make("auto", OSError("no more processes"))
    instance.start(FakeAttempt())
    assert attempts[0].events == ["prepared", "discarded"]
    assert instance.take(IDS) is None


def test_end_of_the_run_ends_it_for_good(make):
    instance, attempts = make("auto")
    instance.start(FakeAttempt())
    instance.close()
    assert attempts[0].events == ["prepared", "discarded"]
    instance.renew()
    instance.expect()
    assert instance.due_at == NEVER


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["strategy=one_device"], True),
        (["strategy=multi_worker"], True),
        (["strategy=parameter_server"], False),
        (["strategy=tpu"], False),
        (["restart.max_restarts=0"], False),
        (["mode=evaluate"], False),
        (["launch=ray", "strategy=multi_worker"], False),
    ],
)
def test_runs_that_can_have_one(monkeypatch, options, expected):
    monkeypatch.setattr(attempt, "visible_gpus", list)
    context = _context(options)
    assert is_possible(context) == expected


def test_accelerators_and_declared_clusters_have_none(monkeypatch):
    monkeypatch.setattr(attempt, "visible_gpus", lambda: ["0"])
    assert not is_possible(_context(["strategy=one_device"]))
    monkeypatch.setattr(attempt, "visible_gpus", list)
    declared = Cluster(ProcessId("worker", 0), {"worker": ["a:1", "b:1"]}, "TF_CONFIG")
    assert not is_possible(_context(["strategy=multi_worker"], declared))


def _context(options, cluster=None):
    experiment = compose(options)
    strategy = select_strategy(experiment)
    console = directory = stop_requests = None
    return RunContext(
        Command(experiment),
        strategy,
        directory,
        console,
        stop_requests,
        cluster=cluster or Cluster(),
    )
