"""An actor that has lost its learner."""

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster, ProcessId
from trainer.reinforcement.actor import Actor
from trainer.runs.directory import write_result


def test_actor_of_another_host_leaves_when_the_run_was_finished_without_it(tmp_path):
    experiment = compose(["task=impala", "env=catch", "model=mlp", "train.steps_per_epoch=10"])
    phases = []

    def receive(message):
        phases.append(message)
        if len(phases) == 2:  # at the first one the learner may come back
            write_result(tmp_path, experiment, {})

    actor = Actor(
        None, None, experiment=experiment, run_dir=tmp_path, channel=Channel(receive),
        cluster=Cluster(ProcessId("actor", 0), {"worker": ["a:1"]}, "TF_CONFIG"),
        stop=lambda: False,
    )  # fmt: skip
    assert actor.run()
    assert len(phases) >= 2
