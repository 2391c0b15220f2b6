"""The launcher: what it prints, refuses and leaves behind, without starting a process."""

import json
import re
import signal
import threading

import pytest

from tests.support.command_line import run_here
from trainer.cli.compose import compose
from trainer.cli.overrides import resume_override, rewrite
from trainer.cluster.network_namespace import IsolationError
from trainer.launch import launcher
from trainer.runs.directory import open_run


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("strategy", "jobs"),
    [("multi_worker", ("chief", "worker", "ps")), ("parameter_server", ("chief", "worker"))],
)
def test_cluster_that_does_not_suit_the_strategy_is_refused(here, monkeypatch, strategy, jobs):
    # Addresses of another machine: nothing listens there, and nothing is looked up.
    addresses = {job: [f"192.0.2.0:1{len(job)}"] for job in jobs}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": addresses, "task": {"type": "worker", "index": 0}})
    )
    done = run_here(f"strategy={strategy}")
    assert done.code == 2
    assert re.fullmatch("error: TF_CONFIG: .*job ps.*\n", done.err)
    assert list(here.iterdir()) == []


def test_impossible_isolation_is_reported_before_anything_is_written(here, monkeypatch):
    def refuse():
        raise IsolationError("the system forbids it")

    monkeypatch.setattr(launcher, "Namespace", refuse)
    done = run_here("strategy=multi_worker", "strategy.isolate=true")
    assert (done.code, done.err) == (
        2,
        "error: strategy.isolate (true) is impossible here: the system forbids it; "
        "use auto or false\n",
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "jobs", "reason"),
    [
        (["strategy=multi_worker", "mode=evaluate"], {"worker": 2}, "mode (evaluate) reads it"),
        (
            ["strategy=multi_worker", "evaluate.sidecar=true"],
            {"worker": 2},
            "the evaluator of TF_CONFIG reads it; add evaluate.sidecar=false",
        ),
        (
            ["strategy=parameter_server"],
            {"chief": 1, "worker": 1, "ps": 1},
            "the servers of the strategy use it; use strategy=multi_worker",
        ),
    ],
)
def test_what_needs_a_common_folder_is_refused_in_a_store(
    here, monkeypatch, overrides, jobs, reason
):
    cluster = {job: [f"{job}:{port}" for port in range(1, num + 1)] for job, num in jobs.items()}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    done = run_here("runs_dir=s3://bucket/runs", "store.work_dir=work", *overrides)
    assert done.code == 2
    assert f"have no folder in common: {reason}" in done.err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["plain", "a b", "a,b=c", "it's", "(a)", "ä", "a{b}[c]", "x:y"])
def test_resume_override_quotes_any_directory(tmp_path, name):
    run = open_run(compose([f'runs_dir="{tmp_path / name}"']), ["seed=0"], None)
    run.release()
    override = resume_override(run.path)
    assert compose(rewrite([override])[0]).resume == str(run.path)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def handlers():
    wakeup_fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup_fd)
    return wakeup_fd, [signal.getsignal(number) for number in SIGNALS]


def test_inline_run_gives_the_signals_back(here):
    (here / "empty").mkdir()
    before = handlers()
    outcome = run_here("launch=inline", "model=softmax", "init_from=empty")
    assert outcome.code == 2, outcome
    assert handlers() == before
    for thread in threading.enumerate():
        if thread.name == "signals":
            thread.join(60)
            assert not thread.is_alive()
