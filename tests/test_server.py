"""A server leaves when it is told to, whoever supervises it; until then it serves, also when it is asked to stop."""

import pytest

from trainer import server
from trainer.channel import Channel
from trainer.cluster import Cluster, Task

JOBS = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}
CHIEF = Cluster(Task("chief", 0), JOBS, "TF_CONFIG")


class Started:
    target = "grpc://b:1"


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(server, "_start", lambda cluster: Started())
    monkeypatch.setattr(server, "_answers", lambda address: True)
    monkeypatch.setattr(server, "_LOOK_SECS", 0.0)
    return tmp_path


def serve(run_dir, stop, task=("ps", 0)):
    """Serves in a declared cluster; gives whether the run was finished, and what was sent."""
    sent = []
    finished = server.serve(Cluster(Task(*task), JOBS, "TF_CONFIG"), run_dir, Channel(sent.append), stop)
    assert not (run_dir / "logs" / "ps-0.word").exists()
    return finished, sent


@pytest.mark.parametrize("finished", [True, False])
def test_a_server_leaves_at_the_chiefs_word_and_not_before(run_dir, finished):
    chief, turns = server.Servers(CHIEF, {"ps"}, run_dir), []

    def stop():
        turns.append(1)
        if len(turns) == 3:
            chief.dismiss(finished=finished)
        return False

    left, sent = serve(run_dir, stop)
    assert left is finished
    assert len(turns) == 3
    assert [message["kind"] for message in sent] == ["phase", "line"]


def test_a_server_that_is_asked_to_stop_passes_it_on_once_and_goes_on_serving(run_dir):
    chief, turns = server.Servers(CHIEF, {"ps", "worker"}, run_dir), []

    def stop():
        turns.append(chief.want_to_stop())
        if len(turns) == 4:
            chief.dismiss(finished=False)
        return True

    left, _ = serve(run_dir, stop)
    assert turns == [False, True, True, True]
    assert not left


def test_what_was_said_to_an_earlier_server_is_not_for_this_one(run_dir):
    (run_dir / "logs" / "ps-0.word").write_text("finished")
    (run_dir / "logs" / "worker-5.word").write_text("stop")  # of a larger cluster
    chief, turns = server.Servers(CHIEF, {"ps", "worker"}, run_dir), []

    def stop():
        turns.append(chief.want_to_stop())
        if len(turns) == 2:
            chief.dismiss(finished=True)
        return False

    assert serve(run_dir, stop)[0]
    assert turns == [False, False]


def test_a_chief_that_is_gone_is_awaited(run_dir, monkeypatch):
    answers = iter([True, False, False, True])
    monkeypatch.setattr(server, "_answers", lambda address: next(answers))
    chief, turns = server.Servers(CHIEF, {"ps"}, run_dir), []

    def stop():
        turns.append(1)
        if len(turns) == 4:
            chief.dismiss(finished=True)
        return False

    _, sent = serve(run_dir, stop)
    assert [message["phase"] for message in sent if message["kind"] == "phase"] == ["serve", "join", "serve"]


def test_servers_that_the_chiefs_own_program_started_need_no_word(tmp_path):
    chief = server.Servers(Cluster(Task("chief", 0), JOBS), {"ps", "worker"}, tmp_path)
    assert not chief.want_to_stop()
    chief.dismiss(finished=True)
    assert list(tmp_path.iterdir()) == []
