"""Several real synchronous processes: the same numbers as one, and all stop or restart together."""

import errno
import json
import os
import socket
import time

import numpy as np
import pytest

from tests.support.processes import (
    ROOT,
    TIMEOUT_SECS,
    final_variables,
    finish,
    finished,
    log,
    only_run,
    run,
    start,
)
from trainer.cluster import discovery
from trainer.cluster.network_namespace import IsolationError, Namespace
from trainer.cluster.spec import ProcessId

# No more steps: the last bits differ, and sooner or later flip a maximum of the pooling.
SIX = [
    "model.width=8", "model.batch_norm=true", "optimizer=sgd", "optimizer.learning_rate=0.05",
    "batch.global_size=48", "train.steps=6",
    "train.clip_norm=0.5", "model.dropout=0",
]  # fmt: skip
MULTI = ["strategy=multi_worker"]


def model_of(run_dir):
    found = final_variables(run_dir)
    return np.concatenate(
        [found[name].ravel() for name in sorted(found) if name.startswith("models")]
    )


@pytest.mark.slow
def test_two_workers_equal_one_device_and_one_process_uses_their_run():
    one = finished(*SIX)
    many = finished(*SIX, *MULTI, "strategy.workers=2")
    assert np.abs(model_of(one) - model_of(many)).max() <= 1e-6
    assert json.loads((many / "run.json").read_text())["num_replicas"] == 2
    # Only the chief writes files.
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
        code, out, err = run(many.parent, f"resume={many}", f"mode={mode[0]}", *mode[1:])
        assert code == 0, out + err
    metrics = json.loads((many / "evaluation-6.json").read_text())["metrics"]
    result = json.loads((many / "result.json").read_text())
    assert metrics == pytest.approx(result["metrics"], abs=1e-6)
    assert (many / "export" / "model-6" / "saved_model" / "saved_model.pb").exists()
    assert (many / "logs" / "worker-1.log").stat().st_mtime_ns == before


def tf_configs(count):
    return [
        member.tf_config()
        for member in discovery.local_clusters(
            [ProcessId("worker", index) for index in range(count)]
        )
    ]


@pytest.mark.slow
def test_waiting_worker_names_the_missing_ones_and_gives_up(tmp_path):
    text = tf_configs(2)[1]
    missing = json.loads(text)["cluster"]["worker"][0]
    code, out, err = finish(
        start(tmp_path, *MULTI, "strategy.start_timeout_secs=6", TF_CONFIG=text)
    )
    assert code == 1
    assert f"worker-1 waits for worker-0 ({missing}) to start (5 s)" in out
    assert (
        f"for worker-0 ({missing}) to start; start them, "
        "or wait longer with strategy.start_timeout_secs" in err
    )


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
def test_different_variables_are_an_error_before_the_first_step(tmp_path):
    err = error_of(tmp_path, ODD_MODEL, "model._target_=odd.differing")
    assert err.startswith("variables of worker-1 differ from the chief's: models/model/")
    assert "kernel" in err


@pytest.mark.slow
def test_different_collectives_are_an_error_before_the_first_step(tmp_path):
    err = error_of(tmp_path, ODD_TASK, "task._target_=odd.Odd")
    assert "collectives of worker-1 differ from the chief's: 1. all_gather" in err
    assert "odd.py:14" in err


@pytest.mark.slow
def test_local_cluster_cannot_be_reached_from_outside(tmp_path):
    try:
        with Namespace():
            pass
    except IsolationError as error:
        pytest.skip(f"no network namespaces here: {error}")
    (tmp_path / "probe.py").write_text(
        "import json, os, pathlib\n\n\nclass Probe:\n    def on_evaluate(self, step, metrics):\n"
        "        found = json.loads(os.environ['TF_CONFIG'])\n"
        "        if found['task']['index'] == 0:\n"
        "            addresses = found['cluster']['worker']\n"
        "            ports = [int(address.rpartition(':')[2]) for address in addresses]\n"
        "            pathlib.Path('ports.json').write_text(json.dumps(ports))\n"
        "            open('wait').read()\n"
        "        return False\n"
    )
    os.mkfifo(tmp_path / "wait")
    probe = [
        "+callbacks.probe={_target_:probe.Probe}",
        "train.steps=2",
        "batch.global_size=16",
        "model.width=4",
    ]
    process = start(tmp_path, *MULTI, *probe, "strategy.isolate=true")
    try:
        with opened_by_reader(tmp_path / "wait", process):  # the cluster is up, and waits
            for port in json.loads((tmp_path / "ports.json").read_text()):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        process.kill()
        process.communicate()


def opened_by_reader(path, process):
    """Open a named pipe for writing once another process reads it."""
    deadline = time.monotonic() + TIMEOUT_SECS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "w")
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads yet
                raise
        time.sleep(0.05)
    raise AssertionError(f"nobody reads {path}: {process.poll()}")
