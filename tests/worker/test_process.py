"""What a worker process imports."""

import pytest
import tensorflow as tf

from tests.support.processes import OPTIONS, ROOT, finish, start
from trainer.cluster.messages import Channel, Crash, Line
from trainer.errors import CRASHED, RESTARTABLE
from trainer.worker import process

TASK = """
from trainer.tasks.classification import Classification


class Named(Classification):
    def __init__(self, *, {option}: int = 1) -> None:
        super().__init__()
        print("task of", "{folder}", flush=True)
"""


def test_import_path_is_changed_in_one_place():
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "trainer").rglob("*.py")
        if "sys.path" in path.read_text()
    }
    assert files == {"trainer/cluster/environment.py"}


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
    process = start(tmp_path / "work", *overrides, PYTHONPATH=str(tmp_path / "installed"))
    code, out, err = finish(process)
    assert code == 0, out + err
    assert "task of installed" in out
    assert "task of work" not in out


@pytest.mark.parametrize(
    ("error", "text", "code", "kind"),
    [
        (tf.errors.AbortedError, "Collective ops is aborted by: Socket closed", RESTARTABLE, Line),
        (
            tf.errors.AbortedError,
            "Operation received an exception: Status: 3, no primitive",
            CRASHED,
            Crash,
        ),
        (
            tf.errors.InternalError,
            "Collective ops is aborted by: unhandled system error",
            RESTARTABLE,
            Line,
        ),
        (tf.errors.InternalError, "NCCL: unhandled cuda error", RESTARTABLE, Line),
        (tf.errors.InternalError, "Failed to run the kernel: no workspace", CRASHED, Crash),
    ],
)
def test_lost_peer_is_restarted_but_a_missing_kernel_is_a_crash(error, text, code, kind):
    sent = []
    assert process._report_error(error(None, None, text), Channel(sent.append)) == code
    assert [type(message) for message in sent] == [kind]
