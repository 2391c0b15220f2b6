"""An actor that has lost its learner."""

import pytest

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster, ProcessId
from trainer.reinforcement.actor import Actor
from trainer.reinforcement.learner_client import Finished
from trainer.runs.directory import write_result
from trainer.worker.context import WorkerContext


def test_actor_of_another_host_leaves_when_the_run_was_finished_while_it_acted(tmp_path):
    experiment = compose(["task=impala", "env=catch", "model=mlp", "train.steps_per_epoch=10"])
    cluster = Cluster(ProcessId("actor", 0), {"worker": ["a:1"]}, "TF_CONFIG")
    context = WorkerContext(experiment, tmp_path, Channel(lambda message: None), cluster)
    actor = Actor(None, None, context, lambda: False)
    actor._phase = "act"
    actor._on_wait()  # the learner may come back
    write_result(tmp_path, experiment, {})
    with pytest.raises(Finished):
        actor._on_wait()
