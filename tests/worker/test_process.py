"""What a worker process imports, and how it reports its end."""

import logging
import os
import sys

import pytest
import tensorflow as tf

from tests.support.processes import OPTIONS, succeed
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Crash, Line
from trainer.errors import CRASHED, RESTARTABLE
from trainer.worker import modes, process
from trainer.worker.training import TrainingRun

TASK = """
from trainer.tasks.classification import Classification


class Named(Classification):
    def __init__(self, *, {option}: int = 1) -> None:
        super().__init__()
        print("task of", "{folder}", flush=True)
"""


@pytest.mark.slow
def test_worker_imports_the_module_that_the_parent_has_checked(tmp_path):
    """An installed module comes before one of the same name in the working directory."""
    for folder, option in (("installed", "ours"), ("work", "other")):
        (tmp_path / folder).mkdir()
        module = TASK.format(folder=folder, option=option)
        (tmp_path / folder / "clashing.py").write_text(module)
    overrides = [*OPTIONS, "train.steps=1", "~task.label_smoothing", "~task.class_weights"]
    overrides += ["~task.focal_gamma"]
    overrides += ["task._target_=clashing.Named", "+task.ours=2"]
    out = succeed(tmp_path / "work", *overrides, PYTHONPATH=str(tmp_path / "installed"))
    assert "task of installed" in out
    assert "task of work" not in out


@pytest.mark.parametrize(
    ("error", "text", "restarts"),
    [
        ("Aborted", "Collective ops is aborted by: Socket closed", True),
        ("Aborted", "Operation received an exception: Status: 3, no primitive", False),
        ("Internal", "Collective ops is aborted by: unhandled system error", True),
        ("InvalidArgument", "Collective ops is aborted by: Task with task_name=/job:worker/task:2 "
         "must be registered before sending heartbeat messages. RPC: "
         "/tensorflow.CoordinationService/Heartbeat", True),
        ("Unknown", "Graph execution error: PeerLostError: worker-1 has gone", True),
        ("Internal", "NCCL: unhandled cuda error", True),
        ("Internal", "Failed to run the kernel: no workspace", False),
    ],
)  # fmt: skip
def test_lost_peer_is_restarted_but_a_missing_kernel_is_a_crash(error, text, restarts):
    sent = []
    raised = getattr(tf.errors, f"{error}Error")(None, None, text)
    code = process._report_error(raised, Channel(sent.append))
    assert code == (RESTARTABLE if restarts else CRASHED)
    assert [type(message) for message in sent] == [Line if restarts else Crash]


@pytest.mark.parametrize("code", [0, RESTARTABLE])
def test_exit_of_users_code_is_a_crash_with_any_code(tmp_path, monkeypatch, code):
    monkeypatch.setattr(modes, "execute", lambda *arguments: sys.exit(code))
    sent = []
    run = TrainingRun(compose([]), tmp_path, Channel(sent.append))
    assert process.attempt(run, None, 0.0) == CRASHED
    (crash,) = sent
    assert f"your code called sys.exit({code!r}) in the middle of the run" in crash.cause
    assert "test_process.py" in crash.text


def test_exit_in_a_child_of_users_code_is_the_childs_own(tmp_path, monkeypatch):
    monkeypatch.setattr(modes, "execute", lambda *arguments: sys.exit(3))
    pids = iter([1, 2])
    monkeypatch.setattr(os, "getpid", lambda: next(pids))
    sent = []
    with pytest.raises(SystemExit):
        process.attempt(TrainingRun(compose([]), tmp_path, Channel(sent.append)), None, 0.0)
    assert sent == []


def test_warnings_are_shown_but_not_those_about_sending():
    messages = []
    handler = process.Warnings(messages.append)
    for name in ("trainer.datasets.images.image_files", "trainer.cluster.messages"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.warning("skipped %s", "a.jpg")
        logger.info("no warning")
        logger.removeHandler(handler)
    assert messages == [Line("warning: skipped a.jpg")]
