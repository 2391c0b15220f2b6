"""A server serves until it is dismissed, also after a request to stop."""

import pytest

from trainer.cluster.messages import Channel, Phase
from trainer.cluster.spec import Cluster, ProcessId
from trainer.worker import server
from trainer.worker.server import ParameterServerControl

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


def served(run_dir, seen, count, *, finished, stops=False, jobs=("ps", "worker")):
    """Serve until the chief dismisses the server at a poll.

    Returns:
        Whether the run was finished, the phases, and what `seen` returns of the chief's side at
        each poll.
    """
    chief = ParameterServerControl(CHIEF, set(jobs), run_dir)
    polls, sent = [], []

    def stop():
        polls.append(seen(chief))
        if len(polls) == count:
            chief.dismiss(finished=finished)
        return stops

    this = Cluster(ProcessId("ps", 0), JOBS, "TF_CONFIG")
    is_finished = server.serve(this, run_dir, Channel(sent.append), stop)
    assert not (run_dir / "logs" / "ps-0.note").exists()
    assert len(polls) == count
    return is_finished, [x.phase for x in sent if isinstance(x, Phase)], polls


@pytest.mark.parametrize("finished", [True, False])
def test_server_exits_when_the_chief_dismisses_it(run_dir, finished):
    outcome = served(run_dir, lambda chief: 1, 3, finished=finished, jobs=["ps"])
    assert outcome == (finished, ["serve"], [1, 1, 1])


def test_server_passes_a_stop_on_once_and_keeps_serving(run_dir):
    stop = ParameterServerControl.stop_requested
    is_finished, _, polls = served(run_dir, stop, 4, finished=False, stops=True)
    assert (is_finished, polls) == (False, [False, True, True, True])


def test_server_ignores_notes_of_an_earlier_run(run_dir):
    (run_dir / "logs" / "ps-0.note").write_text("finished")
    (run_dir / "logs" / "worker-5.note").write_text("stop")  # of a larger cluster
    is_finished, _, polls = served(run_dir, ParameterServerControl.stop_requested, 2, finished=True)
    assert (is_finished, polls) == (True, [False, False])


def test_server_waits_for_a_lost_chief(run_dir, monkeypatch):
    is_up = iter([True, False, False, True])
    monkeypatch.setattr(server, "is_listening", lambda address: next(is_up))
    _, phases, _ = served(run_dir, lambda chief: 1, 4, finished=True, jobs=["ps"])
    assert phases == ["serve", "join", "serve"]


def test_local_servers_need_no_notes(tmp_path):
    chief = ParameterServerControl(Cluster(ProcessId("chief", 0), JOBS), {"ps", "worker"}, tmp_path)
    assert not chief.stop_requested()
    chief.dismiss(finished=True)
    assert list(tmp_path.iterdir()) == []
