"""The choice of the strategy and the cluster of a run, where tests without processes can see it."""

import json

import pytest

from tests.support.command_line import run_here


@pytest.mark.parametrize(
    "overrides",
    [["mode=verify"], ["mode=verify", "verify.layouts=true"]],
    ids=" ".join,
)
def test_modes_that_start_their_own_processes_refuse_a_declared_cluster(
    tmp_path, monkeypatch, overrides
):
    monkeypatch.chdir(tmp_path)
    cluster = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    outcome = run_here(*overrides, "strategy=multi_worker")
    mode = overrides[0].partition("=")[2]
    assert (outcome.code, outcome.err) == (
        2,
        f"error: mode ({mode}) starts its own processes, and TF_CONFIG declares a cluster; "
        f"{mode} without it\n",
    )
    assert not list(tmp_path.iterdir())
