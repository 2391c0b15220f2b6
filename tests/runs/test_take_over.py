"""A run whose lock another host was given: the first one changes nothing more."""

import fcntl
import os
import socket

import pytest
import tensorflow as tf

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.config.directions import Directions
from trainer.errors import ConfigError
from trainer.runs.directory import join_run, lock_file, open_run
from trainer.worker.run import SavedRun
from trainer.worker.run_checkpointer import RunCheckpointer


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = open_run(compose([]), [], None)
    yield run
    run.release()


def take_over(run):
    lock_file(run.path).write_text("7 elsewhere 0123")


def test_command_notices_a_holder_of_the_same_host_name_and_process_id(run):
    fcntl.flock(run.lock, fcntl.LOCK_UN)  # another host sees no lock
    other = open_run(compose([]), [], None)
    pid_and_host = [str(os.getpid()), socket.gethostname()]
    assert lock_file(run.path).read_text().split()[:2] == pid_and_host
    other.check_lock()
    with pytest.raises(ConfigError, match="was taken over by another process"):
        run.check_lock()
    other.release()


def test_command_saves_removes_and_withdraws_nothing_of_another_host(run):
    run.record_continuation([], None)
    saved = SavedRun(compose([]), run.path, Channel(lambda message: None))
    commit = RunCheckpointer(saved, {"a": tf.Variable(1.0)}, Directions()).before_commit
    commit()
    run.check_lock()
    take_over(run)
    for check in (run.check_lock, commit):
        with pytest.raises(ConfigError, match=r"by another process \(pid 7 on elsewhere\)"):
            check()
    join_run(compose([]), "worker-1").check_lock()  # which has no lock
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    run.withdraw()
    run.discard()
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
