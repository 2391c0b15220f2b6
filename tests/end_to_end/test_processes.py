"""Real processes and signals: after any kill the run continues and ends the same."""

import json
import signal
import time

import pytest

from tests.support.processes import (
    OPTIONS,
    ROOT,
    assert_same_run,
    curve,
    final_variables,
    finished,
    only_run,
    run,
    signaler,
    succeed,
    wait_gone,
)
from tests.support.training import assert_same_bits
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.ledger import Ledger
from trainer.runs.status import RunStatus, State, run_status


def assert_same_curves(run_dir, other):
    assert_same_run(run_dir, other)
    for split in ("train", "test"):
        assert curve(run_dir, split) == curve(other, split)


@pytest.mark.slow
def test_worker_killed_several_times_is_restarted_and_loses_nothing(tmp_path):
    killer = signaler(tmp_path, [4, 12], signal.SIGKILL)
    began = time.time()
    code, out, err = run(tmp_path, *OPTIONS, killer)
    secs = time.time() - began
    assert code == 0, err
    assert out.count("was killed by SIGKILL") == 2
    assert_same_curves(finished(*OPTIONS), only_run(tmp_path))
    account = Ledger(only_run(tmp_path)).summary()
    assert account.attempts == 3
    assert secs - max(5.0, 0.05 * secs) <= account.wall_secs <= secs
    assert all(account.secs[x] > 0 for x in ("step", "start", "compile", "eval", "save", "lost"))


@pytest.mark.slow
def test_killed_supervisor_leaves_no_orphan_and_the_same_command_continues(tmp_path):
    killer = signaler(tmp_path, [8], signal.SIGKILL, "supervisor")
    code, out, _ = run(tmp_path, *OPTIONS, killer)
    assert code == -signal.SIGKILL
    wait_gone(int((tmp_path / "sent.jsonl").read_text().split()[1]))
    newest = committed_steps(only_run(tmp_path) / "checkpoints")[-1]  # 6, if it was written by then
    out = succeed(tmp_path, *OPTIONS, killer)
    assert f"Continuing from the checkpoint of step {newest}." in out
    assert_same_curves(finished(*OPTIONS), only_run(tmp_path))


@pytest.mark.slow
def test_stop_request_saves_first_and_the_same_command_continues(tmp_path):
    stopper = signaler(tmp_path, [8], signal.SIGINT, "supervisor")
    code, out, err = run(tmp_path, *OPTIONS, stopper)
    assert code == 130, out + err
    assert "Stopped after saving; the same command continues." in out
    assert (only_run(tmp_path) / "checkpoints" / "ckpt-8.json").exists()
    wait_gone(int((tmp_path / "sent.jsonl").read_text().split()[1]))
    out = succeed(tmp_path, *OPTIONS, stopper)
    assert "Continuing from the checkpoint of step 8." in out
    assert_same_curves(finished(*OPTIONS), only_run(tmp_path))


def test_crash_of_user_code_shows_the_traceback_of_that_code(tmp_path):
    (tmp_path / "broken.py").write_text(
        "def helper(x):\n    return x.nothing\n\n\n"
        "def model(input_shape, num_classes):\n    return helper(3)\n"
    )
    code, out, err = run(tmp_path, "model=softmax", "~model.l2", "model._target_=broken.model")
    log_path = f"runs/{only_run(tmp_path).name}/logs/worker-0.log"
    assert code == 1
    assert err.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/broken.py", line 6, in model',
        "    return helper(3)",
        "           ^^^^^^^^^",
        f'  File "{tmp_path}/broken.py", line 2, in helper',
        "    return x.nothing",
        "           ^^^^^^^^^",
        "AttributeError: 'int' object has no attribute 'nothing'",
        f"error: the worker crashed; the whole log is {log_path}",
        "error: there is no checkpoint yet; to continue: "
        f"python {ROOT / 'train.py'} resume=runs/{only_run(tmp_path).name}",
    ]
    assert "restart" not in out.lower()
    log = (tmp_path / log_path).read_text()
    assert "AttributeError" in log
    assert log.splitlines()[-2:] == ["error: worker-0 failed", err.splitlines()[-1]]
    assert run_status(only_run(tmp_path)) == RunStatus(
        State.FAILED, error="AttributeError: 'int' object has no attribute 'nothing'"
    )


def test_error_found_by_the_worker_is_one_line_and_leaves_nothing(tmp_path):
    code, _, err = run(tmp_path, "dataset=cifar10", f"dataset.path={tmp_path}")
    assert code == 2
    assert err.startswith("error: dataset: ")
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_finished_run_is_not_trained_again_and_can_be_extended(tmp_path):
    short = [*OPTIONS, "train.steps=6"]
    succeed(tmp_path, *short)
    out = succeed(tmp_path, *short)
    assert out.startswith("Already finished: step 6,")
    run_dir = only_run(tmp_path)
    out = succeed(tmp_path, f"resume={run_dir}", "train.steps=24")
    assert "Continuing from the checkpoint of step 6." in out
    assert_same_bits(final_variables(finished(*OPTIONS)), final_variables(run_dir))
    out = succeed(tmp_path, *short, f"init_from={run_dir}", "name=second")
    assert f"Initial weights: step 24 of {run_dir}." in out
    (second,) = (tmp_path / "runs").glob("second-*")
    assert json.loads((second / "result.json").read_text())["step"] == 6
