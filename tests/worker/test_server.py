"""A server serves until it is dismissed, also after a request to stop."""

import pytest

from trainer.cluster.messages import Channel, Line, Phase
from trainer.cluster.spec import Cluster, ProcessId
from trainer.worker import server

JOBS = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}
CHIEF = Cluster(ProcessId("chief", 0), JOBS, "TF_CONFIG")


class FakeServer:
    target = "grpc://b:1"


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(server, "_start_server", lambda cluster: FakeServer())
    monkeypatch.setattr(server, "is_listening", lambda address: True)
    monkeypatch.setattr(server, "_POLL_SECS", 0.0)
    return tmp_path


def serve(run_dir, stop, process_id=("ps", 0)):
    """Serve in a declared cluster; return whether the run was finished, and the messages."""
    sent = []
    finished = server.serve(
        Cluster(ProcessId(*process_id), JOBS, "TF_CONFIG"), run_dir, Channel(sent.append), stop
    )
    assert not (run_dir / "logs" / "ps-0.note").exists()
    return finished, sent


@pytest.mark.parametrize("finished", [True, False])
def test_server_exits_when_the_chief_dismisses_it(run_dir, finished):
    chief = server.ParameterServerControl(CHIEF, {"ps"}, run_dir)
    polls = []

    def stop():
        polls.append(1)
        if len(polls) == 3:
            chief.dismiss(finished=finished)
        return False

    finished_run, sent = serve(run_dir, stop)
    assert finished_run is finished
    assert len(polls) == 3
    assert [type(message) for message in sent] == [Phase, Line]


def test_server_passes_a_stop_on_once_and_keeps_serving(run_dir):
    chief = server.ParameterServerControl(CHIEF, {"ps", "worker"}, run_dir)
    polls = []

    def stop():
        polls.append(chief.stop_requested())
        if len(polls) == 4:
            chief.dismiss(finished=False)
        return True

    finished, _ = serve(run_dir, stop)
    assert polls == [False, True, True, True]
    assert not finished


def test_server_ignores_notes_of_an_earlier_run(run_dir):
    (run_dir / "logs" / "ps-0.note").write_text("finished")
    (run_dir / "logs" / "worker-5.note").write_text("stop")  # of a larger cluster
    chief = server.ParameterServerControl(CHIEF, {"ps", "worker"}, run_dir)
    polls = []

    def stop():
        polls.append(chief.stop_requested())
        if len(polls) == 2:
            chief.dismiss(finished=True)
        return False

    assert serve(run_dir, stop)[0]
    assert polls == [False, False]


def test_server_waits_for_a_lost_chief(run_dir, monkeypatch):
    is_up = iter([True, False, False, True])
    monkeypatch.setattr(server, "is_listening", lambda address: next(is_up))
    chief = server.ParameterServerControl(CHIEF, {"ps"}, run_dir)
    polls = []

    def stop():
        polls.append(1)
        if len(polls) == 4:
            chief.dismiss(finished=True)
        return False

    _, sent = serve(run_dir, stop)
    assert [message.phase for message in sent if isinstance(message, Phase)] == [
        "serve",
        "join",
        "serve",
    ]


def test_local_servers_need_no_notes(tmp_path):
    chief = server.ParameterServerControl(
        Cluster(ProcessId("chief", 0), JOBS), {"ps", "worker"}, tmp_path
    )
    assert not chief.stop_requested()
    chief.dismiss(finished=True)
    assert list(tmp_path.iterdir()) == []
