"""IMPALA in one process: an actor in a thread next to the engine."""

import json
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import variables
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster, ProcessId
from trainer.reinforcement.actor import Actor, PublishedPolicy
from trainer.reinforcement.buffers.queue import Queue
from trainer.reinforcement.connection import COUNTS
from trainer.worker.run import SavedRun
from trainer.worker.training import TrainingRun

LENGTH, BATCH = 5, 4
SMALL = (
    "task=impala", "env=catch", "env.rows=4", "env.columns=3", "model=mlp", "model.hidden=[8]",
    f"task.unroll_length={LENGTH}", f"batch.global_size={BATCH}", "actors.environments=3",
    "train.steps=8", "train.epochs=null", "train.steps_per_epoch=100", "evaluate.episodes=4",
    "evaluate.every_epochs=null", "checkpoint.every_epochs=null", "summary.every_steps=2",
    "writers=[jsonl]",
)  # fmt: skip


class Policy:
    """Stands for the actor's own copy of the task: acts at random."""

    unroll_length = LENGTH

    def assign(self, weights):
        """Learn nothing."""

    def act(self, observations, seed, exploration):
        logits = np.zeros([len(observations), 3], np.float32)
        return {
            "action": np.random.default_rng(seed).integers(3, size=len(logits)),
            "logits": logits,
        }


def train(run_dir, *overrides, stop=lambda run: False, num_actors=1, acts=False):
    """Train with actors in threads; return the engine at its end.

    `acts`: whether they act by the task's own policy.
    """
    run_dir.mkdir(exist_ok=True)
    experiment = compose([*SMALL, *overrides])
    channel = Channel(lambda message: None)
    end = threading.Event()
    run = TrainingRun(experiment, run_dir, channel).engine
    saved = SavedRun(experiment, run_dir, channel)
    data = saved.dataset
    policy = Policy()
    if acts:
        policy = PublishedPolicy(saved.task, data.env)

    def act(index):
        cluster = Cluster(ProcessId("actor", index))
        actor = Actor(
            policy, data, experiment=experiment, run_dir=run_dir, channel=channel, cluster=cluster,
            stop=end.is_set,
        )  # fmt: skip
        try:
            actor.run()
        finally:  # the engine must not wait for an actor that is gone
            run.loop.close(finished=True)

    threads = [threading.Thread(target=act, args=(index,)) for index in range(num_actors)]
    for thread in threads:
        thread.start()
    try:
        run.train(lambda: stop(run))
        run.loop.close(finished=True)
    finally:
        end.set()
        for thread in threads:
            thread.join(30)
    return run


def log(run_dir, split):
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == split]


@pytest.mark.slow
def test_counts_of_frames_are_exact_and_survive_a_resume(tmp_path):
    first = train(tmp_path / "run", stop=lambda run: run.step >= 3)
    step = first.step
    assert 3 <= step < 8
    generated, dropped, lost, waiting = map(int, first.state.frame_counts.numpy())
    assert generated == step * BATCH * LENGTH + dropped + lost + waiting
    second = train(tmp_path / "run")
    totals = second.result()
    assert totals["frames"] == 8 * BATCH * LENGTH
    assert totals["frames_lost"] == lost + waiting
    assert totals["frames_generated"] == sum(totals[name] for name in ("frames", *COUNTS[1:]))
    assert log(tmp_path / "run", "train")[-1]["frames"] == totals["frames"]


@pytest.mark.slow
def test_no_unroll_is_trained_on_that_is_older_than_the_bound(tmp_path):
    train(tmp_path / "run", "buffer.max_staleness=0", "buffer.capacity=4")
    assert [line["staleness"] for line in log(tmp_path / "run", "train")] == [0.0] * 4


@pytest.mark.slow
def test_actor_records_the_logits_that_it_has_acted_by(tmp_path, monkeypatch):
    unrolls = []

    def add(self, unroll):
        unrolls.append(unroll.arrays)
        take(self, unroll)

    take = Queue.add
    monkeypatch.setattr(Queue, "add", add)
    run = train(tmp_path / "run", "optimizer.learning_rate=1e-30", num_actors=2, acts=True)
    assert run.result()["frames"] == 8 * BATCH * LENGTH
    assert len(unrolls) >= BATCH * 8
    for unroll in unrolls:
        observations = tf.cast(unroll["observation"][:-1], tf.float32)
        outputs = run.state.task.models["model"](observations)
        np.testing.assert_allclose(unroll["logits"], outputs[:, :3], atol=1e-5)
    assert {int(action) for unroll in unrolls for action in unroll["action"]} == {0, 1, 2}


@pytest.mark.slow
def test_training_changes_all_weights_and_evaluates_whole_episodes(tmp_path):
    run = train(tmp_path / "run", stop=lambda run: run.step >= 1)
    before = variables(run)
    after = variables(train(tmp_path / "run"))
    weights = [name for name in before if name.startswith("/models")]
    assert weights
    assert all((before[name] != after[name]).any() for name in weights)
    (line,) = log(tmp_path / "run", "test")
    assert line["episode_length"] == 3.0
    assert -1.0 <= line["return"] <= 1.0
