"""What a step tells of its replica and process, and the parts of a task of its process."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step
from trainer.engine.process_group import ProcessGroup
from trainer.worker.task_parts import Parts


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


def test_parts_tell_the_process_of_a_cluster():
    group = ProcessGroup(tf.distribute.get_strategy(), 1, 3, is_chief=False)
    parts = Parts(None, None, plan=None, callbacks={}, process_group=group)  # type: ignore[arg-type]
    assert (parts.worker, parts.num_workers, parts.is_chief) == (1, 3, False)
