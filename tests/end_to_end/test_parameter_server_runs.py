"""Parameter servers in real processes: after kills every sample is trained, the count exact."""

import json
import os
import select
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support import training
from tests.support.processes import (
    final_variables,
    finish,
    only_run,
    start,
    succeed,
    wait_until,
    worker_pids,
)
from trainer.engine.checkpoints.checkpointer import Checkpointer

TASK = '''
import pathlib
import tensorflow as tf
from trainer.tasks.classification import Classification

GATES = pathlib.Path("gates").absolute()


class Counting(Classification):
    """Counts how often each step begins; from a gate's step on, steps wait for the gate."""

    def __init__(self, *, steps: int, gates: list[int], **options):
        super().__init__(**options)
        self.steps, self.gates = steps, list(gates)

    def build(self, parts):
        super().build(parts)
        counter = tf.keras.layers.Layer(name="counter")
        counts = counter.add_weight(
            name="counts", shape=[self.steps], dtype=tf.int32, initializer="zeros", trainable=False
        )
        model = tf.keras.Sequential([counter])
        model.build([None, 1])
        self.models = {**self.models, "counter": model}
        self.counts = counts

    def train_step(self, batch, step):
        one = tf.IndexedSlices(tf.ones([1], tf.int32), tf.cast(step.index, tf.int32)[None])
        with tf.control_dependencies([self.counts.scatter_add(one)]):
            index = tf.identity(step.index)
        with tf.control_dependencies([wait(index, gate) for gate in self.gates]):
            batch = tf.nest.map_structure(tf.identity, batch)
        return super().train_step(batch, step)


def wait(index, gate):
    """Leaves a file that says that this step waits, and waits until the gate is open."""

    def closed(turn):
        # The name depends on the turn, so that it is looked for again at every turn.
        empty = tf.strings.substr(tf.strings.as_string(turn), 0, 0)
        name = tf.strings.join([str(GATES / f"open-{gate}"), empty])
        return tf.equal(tf.size(tf.io.matching_files(name)), 0)

    def report_and_wait():
        name = tf.strings.join([str(GATES / f"waits-{gate}-"), tf.strings.as_string(index)])
        with tf.control_dependencies([tf.io.write_file(name, "")]):
            return tf.while_loop(closed, lambda turn: turn + 1, [tf.constant(0)])[0]

    must_wait = tf.logical_and(index >= gate, closed(tf.constant(0)))
    return tf.cond(must_wait, report_and_wait, lambda: tf.constant(0))
'''

SMALL = [
    "strategy=parameter_server", "model=softmax", "batch.global_size=8", "restart.backoff_secs=0",
    "writers=[jsonl]",
]  # fmt: skip


def counting(directory: Path, steps: int, gates: list[int]) -> list[str]:
    """Put the task into a user's project, and return the overrides that train it for so many steps.

    Both workers come to a gate if it is at the beginning of a call: calls begin at an epoch's end,
    every 180 steps, or at a save.
    """
    (directory / "counting.py").write_text(TASK)
    (directory / "gates").mkdir(exist_ok=True)
    listed = json.dumps(gates, separators=(",", ":"))
    return [
        *SMALL, "task._target_=counting.Counting", f"+task.steps={steps}", f"+task.gates={listed}",
        f"train.steps={steps}", "train.steps_per_loop=50",
    ]  # fmt: skip


class Run:
    """A running command that is watched."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.directory, self.process = directory, start(directory, *overrides)
        self._held: dict[str, int] = {}

    def kill_at(self, gate: int, task: str | None) -> None:
        """Wait until both workers wait at a gate, kill a process, and open the gate."""
        gates = self.directory / "gates"
        wait_until(lambda: len(list(gates.glob(f"waits-{gate}-*"))) == 2, self.process)
        self.hold("chief-0", "ps-0", "worker-0", "worker-1")
        if task is not None:
            os.kill(worker_pids(self.directory)[task], signal.SIGKILL)
        (gates / f"open-{gate}").touch()

    def hold(self, *tasks: str) -> None:
        """Open a pidfd of each task's process, to see its end."""
        pids = worker_pids(self.directory)
        self._held |= {f"{task} ({pids[task]})": os.pidfd_open(pids[task]) for task in tasks}

    def end(self, expected: int = 0) -> str:
        """Wait for the end, which leaves no process; return what was printed."""
        code, out, err = finish(self.process)
        assert code == expected, out + err
        for name, descriptor in self._held.items():
            assert select.select([descriptor], [], [], 20)[0], f"{name} is an orphan"
            os.close(descriptor)
        return out


@pytest.fixture
def begin():
    """Start runs, and end those that a failed test has left, with their processes."""
    runs = []

    def begin(*arguments):
        runs.append(Run(*arguments))
        return runs[-1]

    yield begin
    for watched in runs:
        watched.process.kill()
        watched.process.communicate()


def train_lines(directory: Path) -> list[dict]:
    """Return the lines of the training split that the one run has logged so far."""
    texts = [
        line
        for file in directory.glob("runs/*/metrics.jsonl")
        for line in file.read_text().splitlines(keepends=True)
    ]
    lines = [json.loads(text) for text in texts if text.endswith("\n")]
    return [line for line in lines if line["split"] == "train"]


def counts(run_dir: Path):
    return final_variables(run_dir)[
        "models/counter/layer_with_weights-0/counts/.ATTRIBUTES/VARIABLE_VALUE"
    ]


@pytest.mark.slow
def test_killed_workers_are_replaced_and_every_step_is_counted_once(begin, tmp_path):
    gates = [500, 1000, 1500]
    live = begin(tmp_path, *counting(tmp_path, 2000, gates), "summary.every_steps=100")
    # Both workers wait at each gate: so the one that was killed at the one before works again.
    for gate, lost in zip(gates, ("worker-0", "worker-0", None), strict=True):
        live.kill_at(gate, lost)
    out = live.end()
    run_dir = only_run(tmp_path)
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["step"], result["attempts"]) == (2000, 1)
    lines = train_lines(tmp_path)
    counted = counts(run_dir)
    assert counted.min() >= 1
    repeated = int(counted.sum()) - 2000
    assert repeated >= 2
    assert lines[-1]["steps_repeated"] == repeated
    assert f"{repeated} steps were begun a second time" in out
    assert out.count("warning: worker-0 was killed by SIGKILL; starting it again alone") == 2
    assert all(line["worker_0_steps_per_sec"] > 0 for line in lines if line["step"] > 1500)
    assert max(line["staleness_max"] for line in lines) >= 1


@pytest.mark.slow
def test_loss_of_a_server_or_the_chief_loses_no_step(begin, tmp_path):
    saves = [
        "checkpoint.every_steps=100", "checkpoint.every_epochs=null",
        "checkpoint.memory_every_steps=50",
    ]  # fmt: skip
    live = begin(tmp_path, *counting(tmp_path, 600, [152, 352]), *saves)
    for gate, lost in ((152, "ps-0"), (352, "chief-0")):
        live.kill_at(gate, lost)
    out = live.end()
    run_dir = only_run(tmp_path)
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["step"], result["attempts"]) == (600, 3)
    assert "warning: ps-0 was killed by SIGKILL" in out
    assert "warning: chief-0 was killed by SIGKILL" in out
    assert [line for line in out.splitlines() if line.startswith("Continuing")] == [
        f"Continuing from step {step} (memory of chief-0), no completed step lost."
        for step in (150, 350)
    ]
    # What the lost attempts had trained since then was lost with them, the counts too.
    assert set(counts(run_dir)) == {1}
    assert train_lines(tmp_path)[-1]["steps_repeated"] == 0
    assert "a second time" not in out


@pytest.mark.slow
def test_stop_of_any_process_saves_first_and_the_same_command_continues(begin, tmp_path):
    saved = None
    for task in ("ps-0", "supervisor"):
        options = ["strategy.workers=1", "train.steps=1000000", "summary.every_steps=20"]
        live = begin(tmp_path, *SMALL, *options)
        logged = len(train_lines(tmp_path))
        wait_until(lambda logged=logged: len(train_lines(tmp_path)) > logged, live.process)
        live.hold("chief-0", "ps-0", "worker-0")
        pids = {**worker_pids(tmp_path), "supervisor": live.process.pid}
        os.kill(pids[task], signal.SIGTERM)
        out = live.end(143)
        assert "Stopped after saving; the same command continues." in out
        assert saved is None or f"Continuing from the checkpoint of step {saved}." in out
        saved = int(final_variables(only_run(tmp_path))["step/.ATTRIBUTES/VARIABLE_VALUE"])
        assert saved >= train_lines(tmp_path)[-1]["step"]


SPLIT = ["strategy.ps=2", "strategy.partitioner=fixed_shards"]
LEARNER = [
    "model.width=8", "model.batch_norm=true", "model.l2=1e-4", "batch.global_size=64",
    "train.ema_decay=0.9", "train.clip_norm=1.0",
    "evaluate.every_epochs=100", "checkpoint.every_epochs=100",
]  # fmt: skip


@pytest.mark.slow
def test_partitioned_variables_train_and_their_checkpoints_fit_every_strategy(tmp_path):
    options = [*SPLIT, *LEARNER, "train.steps=60", "summary.every_steps=10"]
    succeed(tmp_path, "strategy=parameter_server", *options)
    run_dir = only_run(tmp_path)
    saved, result = final_variables(run_dir), json.loads((run_dir / "result.json").read_text())
    losses = [line["loss"] for line in train_lines(tmp_path)]
    assert losses[-1] < 0.8 * losses[0]
    continue_on_one_device(run_dir, saved, result["metrics"])
    # And with other shards.
    other = ["strategy.partitioner=max_size", "strategy.shard_bytes=4096"]
    out = succeed(tmp_path, f"resume={run_dir}", "train.steps=80", *other)
    assert "Continuing from the checkpoint of step 70." in out
    assert json.loads((run_dir / "result.json").read_text())["step"] == 80


def numbers(state, starts):
    """Return the sum of the absolute values of each variable that is no weight of a model."""
    return [
        np.abs(value.astype(float)).sum()
        for name, value in state.items()
        if name.startswith(starts)
    ]


def continue_on_one_device(run_dir, saved, metrics):
    """Assert that every variable is there, whole, and gives the same metrics; train on."""
    alone = training.engine(run_dir, *LEARNER, "model.dropout=0.25", "train.steps=70")
    assert alone.checkpointer.restore_latest() == 60
    assert alone.evaluator.evaluate(lambda: False).metrics == pytest.approx(metrics, rel=1e-5)
    restored = numbers(training.variables(alone), ("/averages", "/optimizers"))
    known = numbers(saved, ("averages", "optimizers"))
    assert len(restored) == len(known)
    assert sum(restored) == pytest.approx(sum(known))
    alone.train(lambda: False)
    assert alone.step == 70


@pytest.mark.long
def test_partitioned_variables_have_the_same_initial_values(tmp_path):
    options = [*LEARNER, "model.dropout=0.25", "optimizer.learning_rate=1e-12", "train.steps=1"]
    succeed(tmp_path, "strategy=parameter_server", *SPLIT, *options)
    split = final_variables(only_run(tmp_path))
    training.train(tmp_path / "runs" / "one", *options)
    whole = final_variables(tmp_path / "runs" / "one")
    assert split.keys() == whole.keys()
    for name in split:
        if "kernel" in name:
            np.testing.assert_allclose(split[name], whole[name], atol=1e-9, err_msg=name)


def test_server_lost_during_a_save_is_not_reported_as_a_disk_error(tmp_path, monkeypatch):
    checkpoints = Checkpointer(tmp_path, {"x": tf.Variable(1.0)})

    def lost(camera):
        raise tf.errors.UnavailableError(None, None, "failed to connect to all addresses")

    monkeypatch.setattr("trainer.engine.checkpoints.snapshot.SnapshotReader.capture", lost)
    with pytest.raises(tf.errors.UnavailableError):
        checkpoints.save(1, None)
