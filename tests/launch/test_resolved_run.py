"""The choice of the strategy and the cluster of a run, where tests without processes can see it."""

import json

from tests.support.command_line import run_here


def test_mode_that_starts_its_own_processes_refuses_a_declared_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cluster = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    outcome = run_here("mode=verify", "strategy=multi_worker")
    assert (outcome.code, outcome.err) == (
        2,
        "error: mode (verify) starts its own processes, and TF_CONFIG declares a cluster; "
        "verify without it\n",
    )
    assert not list(tmp_path.iterdir())
