"""The audit finds a wrong bit and a wrong kernel, and changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.choices import NEEDED
from tests.support.training import RANDOM, assert_same_bits, engine, train, trained, variables
from tests.tasks.test_tasks import GAN
from trainer.engine.audit import auditor
from trainer.engine.audit.auditor import Auditor
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError, DivergedError
from trainer.tasks.classification import Classification

TWO = ("strategy=mirrored", "strategy.virtual_devices=2")
THREE = ("strategy=mirrored", "strategy.virtual_devices=3", "batch.global_size=24")
AUDIT = "watchdog.audit_every_steps=3"
FLIP = "+fault.flip={action:flip_bit,at:4}"
TASK = ("~task.label_smoothing", "~task.class_weights", "~task.focal_gamma")


class WrongOnReplica(Classification):
    """Stands for a processor: what the second replica computes from step 4 on is off by little."""

    def train_step(self, batch, step):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        is_wrong = tf.equal(replica, 1) & (step.index >= 4)
        factor = tf.where(is_wrong, 1.0 + 2.0**-20, 1.0)
        return super().train_step({**batch, "features": batch["features"] * factor}, step)


def local_kernels(run):
    """Return the copies of the largest weight."""
    weights = run.state.task.models["model"].trainable_variables
    weight = max(weights, key=lambda weight: weight.shape.num_elements())
    return [x.numpy() for x in run.loop.strategy.experimental_local_results(weight)]


def test_flipped_bit_goes_unnoticed_without_audit(tmp_path):
    run = engine(tmp_path, *TWO, FLIP)
    assert run.train(lambda: False)
    first, second = local_kernels(run)
    assert np.count_nonzero(first != second) == 1


@pytest.mark.slow
def test_flipped_bit_is_found_and_named(tmp_path):
    with pytest.raises(
        DivergedError,
        match=(
            r"^The audit after step 6 found that variable models/model/block1_conv1/kernel:0 of "
            r"worker-0 \(replica 2\) differs from the 2 other copies': element \[.*\] is \S+ "
            r"instead of \S+ \(1 of 576 elements\); check .* checkpoints after step 3, "
        ),
    ):
        train(tmp_path, *THREE, AUDIT, FLIP)


@pytest.mark.slow
def test_rollback_goes_back_to_what_was_audited(tmp_path):
    more = ("divergence.action=rollback", "checkpoint.every_steps=1", "checkpoint.keep=1")
    run = engine(tmp_path, *TWO, AUDIT, FLIP, *more)
    restored = []
    restore = run.checkpointer.restore
    run.checkpointer.restore = lambda step: (restored.append(step), restore(step))
    assert run.train(lambda: False)
    assert restored == [3]
    first, second = local_kernels(run)
    assert first.tobytes() == second.tobytes()
    assert_same_bits(variables(run), trained(*TWO).variables)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["stop", "rollback"])
def test_wrong_kernel_is_found_by_computing_a_shard_again(tmp_path, action):
    # The sums of a step are the same on all replicas, and so are the wrong variables.
    task = "task._target_=tests.engine.audit.test_auditor.WrongOnReplica"
    more = (f"divergence.action={action}", "checkpoint.every_steps=1")
    with pytest.raises(
        DivergedError,
        match=(
            r"^The audit after step 6 computed shard \d of the next step again and found that "
            r"gradient of models/model/\S+ of worker-0 \(replica 1\) differs from the 2 other "
        ),
    ):
        train(tmp_path, *THREE, "batch.shards=6", AUDIT, task, *TASK, *more)


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        (*TWO, *RANDOM, "batch.shards=4", "batch.accumulate=2", "train.ema_decay=0.9"),
        (*TWO, *GAN),
        ("batch.shards=4", *RANDOM),
        (*TWO, "strategy=central_storage", "batch.shards=4"),
        (*TWO, "batch.shards=2", "dataset=stream", *NEEDED["dataset=stream"]),
    ],
    ids=["shards", "gan", "one device", "central storage", "stream"],
)
def test_audit_changes_no_bit(tmp_path, more):
    assert_same_bits(train(tmp_path / "plain", *more), train(tmp_path / "audited", *more, AUDIT))


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("batch.shards=4",)], ids=["variables", "shards"])
def test_audits_of_many_steps_raise_no_false_alarm(tmp_path, more):
    steps = ("train.steps=1000", "evaluate.every_steps=500", "watchdog.audit_every_steps=10")
    assert train(tmp_path, *TWO, *RANDOM, *steps, *more)


def test_single_replica_without_shards_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^watchdog.audit_every_steps \(3\) compares replicas, and there is one;"
    ):
        engine(tmp_path, "strategy=mirrored", "strategy.virtual_devices=1", AUDIT)


@pytest.mark.parametrize(
    ("every", "cost", "interval", "share"),
    [("auto", 0.5, 500, 1.0), ("auto", 0.01, 100, 0.1), (50, 0.5, 50, 10.0)],
)
def test_interval_follows_the_cost(monkeypatch, every, cost, interval, share):
    lines = []
    group = ProcessGroup(tf.distribute.OneDeviceStrategy("CPU:0"))
    clock = iter(np.arange(10) * cost)
    monkeypatch.setattr(auditor, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    channel = SimpleNamespace(line=lines.append)
    audits = Auditor(every, None, None, group, ["worker-0"], channel, total_steps=10_000)
    for step in (100, 200):
        audits.record(100, 10.0)
        assert audits.audit(step) == ""
    assert audits.next_step == 200 + interval
    assert lines == [
        f"An audit takes {1000 * cost:.1f} ms; one every {interval} steps costs {share} % of the "
        "time."
    ]
    audits.begin(9_990)
    assert audits.next_step == 10_000
