"""The record of a command: grows while the command runs, and says how it ended."""

import os
import socket
import threading
from types import SimpleNamespace

import pytest

from tests.support.terminal import Clock
from trainer.cluster.messages import Phase
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import CRASHED
from trainer.launch.display import Console
from trainer.launch.supervision.status_writer import StatusWriter
from trainer.runs import process_status
from trainer.runs.process_status import ProcessStatus

WORKER = ProcessId("worker", 1)
DECLARED = Cluster(WORKER, {"worker": ["a:1", "b:1"]}, "TF_CONFIG")
TIMEOUT_SECS = 60


@pytest.fixture
def time():
    return Clock()


@pytest.fixture
def context(tmp_path, time):
    (tmp_path / "logs").mkdir()
    return SimpleNamespace(
        directory=SimpleNamespace(path=tmp_path),
        console=Console(clock=time),
        experiment=SimpleNamespace(trains=True),
        cluster=Cluster(),
    )


@pytest.fixture
def written(monkeypatch):
    """Let the writer write without a pause; yield what is released at each record."""
    released = threading.Semaphore(0)
    write = process_status.write

    def counted(*arguments):
        write(*arguments)
        released.release()

    monkeypatch.setattr(process_status, "write", counted)
    monkeypatch.setattr(process_status, "INTERVAL_SECS", 0.001)
    return released


def test_record_grows_while_the_command_runs(context, time, written, tmp_path):
    context.console.begin(WORKER)
    context.console.update(WORKER, Phase("train", 12))
    time.now += 75  # it hangs; its parent does not
    context.cluster = DECLARED
    with StatusWriter(context) as writer:
        for _ in range(2):
            assert written.acquire(timeout=TIMEOUT_SECS)
        first = process_status.read(tmp_path)["worker-1"]
        for _ in range(2):
            assert written.acquire(timeout=TIMEOUT_SECS)
        second = process_status.read(tmp_path)["worker-1"]
        writer.code = 143
    assert second.number > first.number
    assert (first.host, first.pid) == (socket.gethostname(), os.getpid())
    assert first.cluster == ["worker-0", "worker-1"]
    assert first.processes == [ProcessStatus("worker-1", "train", 12, 75.0)]
    assert (first.code, second.code) == (None, None)
    last = process_status.read(tmp_path)["worker-1"]
    assert (last.code, last.number > second.number) == (143, True)


def test_command_that_raises_has_crashed(context, tmp_path):
    with pytest.raises(ValueError, match="no"), StatusWriter(context):
        raise ValueError("no")
    assert process_status.read(tmp_path)["worker-0"].code == CRASHED


def test_removed_run_directory_is_not_made_again(context, tmp_path):
    (tmp_path / "logs").rmdir()
    with StatusWriter(context):
        pass
    assert list(tmp_path.iterdir()) == []
