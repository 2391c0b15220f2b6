"""The requests that reach a job of a launcher: what its point is told, and when it is requeued."""

import pickle
import signal
import socket

import pytest

from trainer.cluster.schedulers import slurm_scheduler
from trainer.cluster.stop_requests import REQUESTS
from trainer.files import Lock
from trainer.sweep.launchers import launcher_job
from trainer.sweep.launchers.launcher_job import JobRequests, LauncherJob


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    """Restores the signal handlers that a job replaces; its launcher handles none at first."""
    monkeypatch.setattr(launcher_job, "_POLL_SECS", 0.0)
    original = {number: signal.signal(number, signal.SIG_DFL) for number in REQUESTS}
    yield
    for number, handler in original.items():
        signal.signal(number, handler)


def requests_of_job(is_sweep_running=True):
    return JobRequests(lambda: is_sweep_running)


def test_job_does_not_start_after_its_sweep_has_ended(tmp_path):
    lock = tmp_path / ".lock"
    job = LauncherJob(["train.py"], None, ["seed"], [], lock, socket.gethostname())
    held = Lock.acquire(lock)
    assert job._is_sweep_running()
    held.close()
    assert LauncherJob(["train.py"], None, ["seed"], [], lock, "elsewhere")._is_sweep_running()
    assert pickle.loads(pickle.dumps(job))(None) == 128 + signal.SIGTERM


def test_repeated_stop_signals_reach_the_point_once():
    requests = requests_of_job()
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)
    assert list(requests.signals()) == [signal.SIGTERM]
    assert list(requests.signals()) == []
    requests.requeue()  # nobody has asked for it


def test_save_signals_reach_the_point_if_the_launcher_has_no_handler():
    requests = requests_of_job()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.raise_signal(number)
        assert list(requests.signals()) == [number]


def test_launcher_requeues_the_job_after_the_point_has_saved(capsys):
    requeued = []

    def requeue(number, frame):
        requeued.append(number)
        raise (SystemExit if len(requeued) == 1 else RuntimeError)("timed out too many times")

    signal.signal(signal.SIGUSR2, requeue)
    requests = requests_of_job()
    # As Slurm sends them at a time limit.
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM):
        signal.raise_signal(number)
    assert list(requests.signals()) == [signal.SIGTERM]
    assert requeued == []
    with pytest.raises(SystemExit):
        requests.requeue()
    assert requeued == [signal.SIGUSR2]
    requests.requeue()  # a refusal does not end the sweep
    assert capsys.readouterr().out == "error: timed out too many times\n"


def test_job_that_slurm_starts_again_leaves_no_result_unless_its_sweep_was_stopped(monkeypatch):
    monkeypatch.setattr(slurm_scheduler, "is_requeued", lambda environment: True)
    requests = requests_of_job()
    signal.raise_signal(signal.SIGTERM)
    assert list(requests.signals()) == [signal.SIGTERM]
    with pytest.raises(SystemExit):
        requests.requeue()
    stopped = requests_of_job(is_sweep_running=False)
    assert list(stopped.signals()) == [signal.SIGTERM]
    assert list(stopped.signals()) == []
    stopped.requeue()  # no SystemExit
