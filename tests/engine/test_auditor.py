"""The audit finds a wrong bit, names the process that has it, and changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import TWO, assert_same_bits, engine, train, trained, variables
from trainer.engine import auditor
from trainer.engine.auditor import Auditor, find_difference
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError, DivergedError

THREE = ("strategy=mirrored", "strategy.virtual_devices=3", "batch.global_size=24")
AUDIT = "watchdog.audit_every_steps=3"
FLIP = "+fault.flip={action:flip_bit,at:4}"


def local_kernels(run):
    """Return the copies of the largest weight."""
    weights = run.state.task.models["model"].trainable_variables
    weight = max(weights, key=lambda weight: weight.shape.num_elements())
    return [x.numpy() for x in run.loop.strategy.experimental_local_results(weight)]


@pytest.mark.slow
def test_flipped_bit_is_found_and_named(tmp_path):
    found = (
        r"^The audit after step 6 found that variable models/model/block1_conv1/kernel:0 of "
        r"worker-0 \(replica 2\) differs from that of .* \(replica 0\); .* checkpoints after step 3"
    )
    with pytest.raises(DivergedError, match=found):
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


def test_single_replica_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^watchdog.audit_every_steps \(3\) compares replicas"):
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
    loop = SimpleNamespace(strategy=None, state=SimpleNamespace(variables=dict))
    audits = Auditor(every, loop, group, ["worker-0"], channel, total_steps=10_000)
    for step in (100, 200):
        audits.record(100, 10.0)
        assert audits.audit(step) == ""
    assert audits.next_after(0) == 200 + interval
    (line,) = lines
    assert f"{1000 * cost:.1f} ms; one every {interval} steps costs {share} %" in line
    audits.begin(9_990)
    assert audits.next_after(0) == 10_000


@pytest.mark.parametrize(
    ("copies", "line"),
    [
        (["ab", "ab", "ab"], ""),
        (["ab", "xb", "ab"], "variable first of b differs from that of a"),
        (["xb", "ab", "ab"], "variable first of a differs from that of b"),
        (["ab", "xy"], "variable first of b differs from that of a; so do 1 more"),
        (["ab", "ax", "ay"], "variable second of b, c differs from that of a"),
    ],
)
def test_line_names_the_first_variable_and_whose_copy_differs(copies, line):
    digests = [{"first": copy[0], "second": copy[1]} for copy in copies]
    group = ProcessGroup(tf.distribute.get_strategy())
    assert find_difference(group, "abc"[: len(copies)], digests) == line
