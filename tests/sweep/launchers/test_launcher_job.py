"""The requests that reach a job of a launcher: what its point is told, and when it is requeued."""

import signal
from contextlib import closing

import pytest

from trainer.cluster.schedulers import slurm_scheduler
from trainer.cluster.stop_requests import REQUESTS
from trainer.sweep.launchers import launcher_job
from trainer.sweep.launchers.launcher_job import JobRequests
from trainer.sweep.points.sweep_lock import SweepLock


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    """Restores the signal handlers that a job replaces; its launcher handles none at first."""
    monkeypatch.setattr(launcher_job, "_POLL_SECS", 0.0)
    original = {number: signal.signal(number, signal.SIG_DFL) for number in REQUESTS}
    yield
    for number, handler in original.items():
        signal.signal(number, handler)


@pytest.fixture
def sweep(tmp_path):
    """The lock of a sweep that runs."""
    lock = SweepLock(tmp_path / "sweep" / ".lock")
    with closing(lock.acquire()):
        yield lock


def test_repeated_stop_signals_reach_the_point_once(sweep):
    requests = JobRequests(sweep)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)
    assert list(requests.signals()) == [signal.SIGTERM]
    assert list(requests.signals()) == []
    requests.requeue()  # nobody has asked for it


def test_save_signals_reach_the_point_if_the_launcher_has_no_handler(sweep):
    requests = JobRequests(sweep)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.raise_signal(number)
        assert list(requests.signals()) == [number]


def test_end_of_the_sweep_stops_the_point_once(tmp_path):
    requests = JobRequests(SweepLock(tmp_path / ".lock"))
    assert list(requests.signals()) == [signal.SIGTERM]
    assert list(requests.signals()) == []


def test_launcher_requeues_the_job_after_the_point_has_saved(sweep):
    requeued = []

    def requeue(number, frame):
        requeued.append(number)
        raise SystemExit(-1)

    signal.signal(signal.SIGUSR2, requeue)
    requests = JobRequests(sweep)
    # As Slurm sends them at a time limit.
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM):
        signal.raise_signal(number)
    assert list(requests.signals()) == [signal.SIGTERM]
    assert requeued == []
    with pytest.raises(SystemExit):
        requests.requeue()
    assert requeued == [signal.SIGUSR2]


@pytest.fixture
def preempted_job(monkeypatch):
    """A job that Slurm has decided to start again."""
    monkeypatch.setattr(slurm_scheduler, "is_requeued", lambda environment: True)


def test_job_that_slurm_starts_again_leaves_no_result(sweep, preempted_job):
    requests = JobRequests(sweep)
    signal.raise_signal(signal.SIGTERM)
    assert list(requests.signals()) == [signal.SIGTERM]
    with pytest.raises(SystemExit):
        requests.requeue()


def test_job_of_a_stopped_sweep_leaves_its_result_though_slurm_starts_it_again(
    tmp_path, preempted_job
):
    requests = JobRequests(SweepLock(tmp_path / ".lock"))
    assert list(requests.signals()) == [signal.SIGTERM]
    requests.requeue()  # no SystemExit


def test_refusal_to_requeue_does_not_end_the_sweep(sweep, capsys):
    def refuse(number, frame):
        raise RuntimeError("timed out too many times")

    signal.signal(signal.SIGUSR2, refuse)
    requests = JobRequests(sweep)
    signal.raise_signal(signal.SIGUSR2)
    assert list(requests.signals()) == [signal.SIGTERM]
    requests.requeue()
    assert capsys.readouterr().out == "error: timed out too many times\n"
