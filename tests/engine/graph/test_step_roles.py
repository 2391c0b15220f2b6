"""What a step tells of its replica and process, and the parts of a task of its process."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step


@pytest.mark.parametrize(
    ("number", "local_devices", "expected"),
    [(0, 1, (0, 0)), (3, 1, (3, 3)), (3, 2, (3, 1)), (5, 4, (5, 1))],
)
def test_step_tells_its_replica_and_its_process(monkeypatch, number, local_devices, expected):
    devices = [f"/device:CPU:{index}" for index in range(local_devices)]
    context = SimpleNamespace(
        replica_id_in_sync_group=tf.constant(number),
        num_replicas_in_sync=8,
        strategy=SimpleNamespace(extended=SimpleNamespace(worker_devices=devices)),
    )
    monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: context)
    step = Step(tf.constant(0, tf.int64), StepOptions(), CollectiveLog())
    assert (step.replica, step.worker) == expected
    assert step.num_replicas == 8
