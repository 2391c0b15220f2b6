"""Several real synchronous processes: their files, and errors of one of them."""

import json
import re

import pytest

from tests.support.processes import ROOT, finished, log, only_run, run, succeed

MULTI = ["strategy=multi_worker"]
SIX = ["model=softmax", "batch.global_size=16", "train.steps=6"]


@pytest.mark.slow
def test_chief_alone_writes_files_and_one_process_uses_the_run():
    many = finished(*SIX, *MULTI, "strategy.workers=2")
    assert json.loads((many / "run.json").read_text())["num_replicas"] == 2
    assert {path.name for path in (many / "logs").iterdir()} == {
        "worker-0.log", "worker-1.log", "status-worker-0.json",
    }  # fmt: skip
    assert [line["step"] for line in log(many) if line["split"] == "test"] == [6]
    assert {path.name for path in (many / "checkpoints").iterdir()} == {
        f"ckpt-6.{end}" for end in ("data-00000-of-00001", "index", "json")
    }
    assert len(list((many / "events").glob("*.hparams"))) == 1
    assert len(list((many / "events").iterdir())) == 2
    before = (many / "logs" / "worker-1.log").stat().st_mtime_ns
    for mode in (["evaluate", "strategy=one_device"], ["export"]):
        succeed(many.parent, f"resume={many}", f"mode={mode[0]}", *mode[1:])
    metrics = json.loads((many / "evaluation-6.json").read_text())["metrics"]
    result = json.loads((many / "result.json").read_text())
    assert metrics == pytest.approx(result["metrics"], abs=1e-6)
    assert (many / "export" / "model-6" / "saved_model" / "saved_model.pb").exists()
    assert (many / "logs" / "worker-1.log").stat().st_mtime_ns == before


ODD_MODEL = """
import json
import os

import tensorflow as tf

from trainer.models.softmax import softmax

IS_OTHER = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1


def crashing(input_shape, num_classes):
    if IS_OTHER:
        raise RuntimeError("only here")
    return softmax(input_shape, num_classes)


def differing(input_shape, num_classes):
    model = softmax(input_shape, num_classes)
    if IS_OTHER:
        kernel = model.trainable_variables[0]
        local = tf.distribute.get_strategy().experimental_local_results(kernel)[0]
        local.assign_add(tf.ones_like(local))
    return model
"""
ODD_TASK = """
import json
import os

import tensorflow as tf

from trainer.tasks.classification import Classification

IS_OTHER = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1


class Odd(Classification):
    def train_step(self, batch, step):
        (step.all_gather if IS_OTHER else step.all_reduce)(tf.constant(1.0))
        return super().train_step(batch, step)
"""


def error_of(tmp_path, source, *overrides):
    """Return the error of a cluster whose user's code is odd in one of its processes."""
    (tmp_path / "odd.py").write_text(source)
    code, out, err = run(tmp_path, *MULTI, "model=softmax", "~model.l2", *overrides)
    assert code == 1, out + err
    return err


@pytest.mark.slow
def test_crash_in_one_worker_is_reported_once_and_ends_all(tmp_path):
    err = error_of(tmp_path, ODD_MODEL, "model._target_=odd.crashing")
    assert err.count("RuntimeError: only here") == 1
    assert "logs/worker-1.log" in err
    log = (only_run(tmp_path) / "logs" / "worker-1.log").read_text()
    command = f"python {ROOT / 'train.py'} resume=runs/{only_run(tmp_path).name}"
    told = f"error: there is no checkpoint yet; to continue: {command}\n"
    assert log.endswith(f"error: worker-1 failed\n{told}")
    assert err.endswith(told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "override", "words"),
    [
        (
            ODD_MODEL,
            "model._target_=odd.differing",
            "variables of worker-1 .*: models/model/.*kern",
        ),
        (
            ODD_TASK,
            "task._target_=odd.Odd",
            r"collectives of worker-1 .*: 1\. all_gather.*odd.py:14",
        ),
    ],
    ids=["variables", "collectives"],
)
def test_difference_is_an_error_before_the_first_step(tmp_path, source, override, words):
    assert re.search(words, error_of(tmp_path, source, override))
