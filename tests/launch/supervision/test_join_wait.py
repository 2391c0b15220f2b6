"""Which processes wait at the start, and for which."""

import socket

import pytest

from trainer.cluster.spec import Cluster, ProcessId
from trainer.launch.supervision.attempt import Awaited, JoinWait

FIRST = ProcessId("worker", 0)
SECOND = ProcessId("worker", 1)


@pytest.fixture
def now():
    return [0.0]


def create_join_wait(now, jobs, *started):
    members = {process_id: Cluster(process_id, jobs) for process_id in started}
    return JoinWait(members, 60.0, lambda: now[0])


def test_process_that_was_started_here_is_awaited_until_its_first_phase(now):
    wait = create_join_wait(now, {"worker": ["a:1", "b:2"]}, FIRST, SECOND)
    assert wait.check_at == float("inf")
    assert wait.enter_phase(FIRST, "join")
    assert wait.check_at == 5.0
    now[0] = 7.0
    assert wait.check() == Awaited(FIRST, "worker-1 (b:2)", 7.0, is_over=False)
    assert wait.check_at == 12.0
    assert wait.enter_phase(SECOND, "join")
    assert wait.check() is None
    assert not wait.enter_phase(FIRST, "start")
    assert not wait.enter_phase(SECOND, "start")
    assert not wait.is_waiting


def test_process_that_has_ended_is_missing_again(now):
    wait = create_join_wait(now, {"worker": ["a:1", "b:2"]}, FIRST, SECOND)
    wait.enter_phase(SECOND, "join")
    wait.enter_phase(FIRST, "join")
    wait.end(SECOND)
    assert wait.check() == Awaited(FIRST, "worker-1 (b:2)", 0.0, is_over=False)


def test_process_of_another_program_is_there_if_its_port_answers(now):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        wait = create_join_wait(now, {"worker": ["127.0.0.1:1", address]}, FIRST)
        wait.enter_phase(FIRST, "join")
        assert wait.check() is None
    assert wait.check().missing == f"worker-1 ({address})"


def test_process_that_trains_alone_waits_for_none(now):
    wait = create_join_wait(now, {}, FIRST)
    assert not wait.enter_phase(FIRST, "join")
    assert not wait.is_waiting
