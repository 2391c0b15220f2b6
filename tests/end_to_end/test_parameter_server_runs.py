"""Parameter servers in real processes: after kills every sample is trained, the count exact."""

import json
import os
import re
import select
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support import training
from tests.support.processes import (
    final_variables,
    finish,
    only_run,
    run,
    start,
    worker_pids,
)
from trainer.cluster.discovery import local_clusters
from trainer.cluster.spec import ProcessId
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
    "strategy=parameter_server",
    "model=softmax",
    "batch.global_size=8",
    "restart.backoff_secs=0",
    "writers=[jsonl]",
]
WAIT_SECS = 60


def counting(directory: Path, steps: int, gates: list[int]) -> list[str]:
    """Put the task into a user's project, and return the overrides that train it for so many steps.

    Both workers come to a gate if it is at the beginning of a call: calls begin at an epoch's end,
    every 180 steps, or at a save.
    """
    (directory / "counting.py").write_text(TASK)
    (directory / "gates").mkdir(exist_ok=True)
    listed = json.dumps(gates, separators=(",", ":"))
    return [
        *SMALL,
        "task._target_=counting.Counting",
        f"+task.steps={steps}",
        f"+task.gates={listed}",
        f"train.steps={steps}",
        "train.steps_per_loop=50",
    ]


class Run:
    """A run that is watched while it goes on."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.directory, self.process = directory, start(directory, *overrides)

    def until(self, what):
        """Poll until something is there, and return it."""
        end = time.monotonic() + WAIT_SECS
        while not (found := what()):
            assert self.process.poll() is None, "".join(finish(self.process)[1:])
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)
        return found

    def until_waiting(self, gate: int, number: int) -> None:
        """Wait until so many steps wait at a gate."""
        self.until(lambda: len(list((self.directory / "gates").glob(f"waits-{gate}-*"))) == number)

    def open(self, gate: int) -> None:
        (self.directory / "gates" / f"open-{gate}").touch()

    def pid(self, task: str) -> int:
        """Return the id of a task's living process."""
        return worker_pids(self.directory)[task]

    def hold(self, *tasks: str) -> dict[str, int]:
        """Return a pidfd of each task's process, to see its end."""
        return {f"{task} ({pid})": os.pidfd_open(pid) for task in tasks for pid in [self.pid(task)]}


@pytest.fixture
def begin():
    """Start runs, and end those that a failed test has left, with their processes."""
    made = []

    def begin(*arguments):
        made.append(Run(*arguments))
        return made[-1]

    yield begin
    for watched in made:
        watched.process.kill()
        watched.process.communicate()


def gone(descriptors: dict[str, int]) -> None:
    """Hold that processes, by their pidfd, have ended."""
    for name, descriptor in descriptors.items():
        assert select.select([descriptor], [], [], 20)[0], f"{name} is an orphan"
        os.close(descriptor)


def train_lines(directory: Path) -> list[dict]:
    """Return what the one run directory's log tells of training so far."""
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
    live, everyone = (
        begin(tmp_path, *counting(tmp_path, 2000, gates), "summary.every_steps=100"),
        {},
    )
    for gate in gates:
        # Both workers wait at each gate: so the one that was killed at the one before works again.
        live.until_waiting(gate, 2)
        everyone |= live.hold("chief-0", "ps-0", "worker-0", "worker-1")
        if gate != gates[-1]:
            os.kill(live.pid("worker-0"), signal.SIGKILL)
        live.open(gate)
    code, out, err = finish(live.process)
    assert code == 0, out + err
    gone(everyone)
    run_dir = only_run(tmp_path)
    result, lines, counted = (
        json.loads((run_dir / "result.json").read_text()),
        train_lines(tmp_path),
        counts(run_dir),
    )
    assert (result["step"], result["attempts"]) == (2000, 1)
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
    live = begin(
        tmp_path,
        *counting(tmp_path, 600, [152, 352]),
        "checkpoint.every_steps=50",
        "checkpoint.every_epochs=null",
    )
    everyone = {}
    for gate, lost in ((152, "ps-0"), (352, "chief-0")):
        live.until_waiting(gate, 2)
        everyone |= live.hold("chief-0", "ps-0", "worker-0", "worker-1")
        os.kill(live.pid(lost), signal.SIGKILL)
        live.open(gate)
    code, out, err = finish(live.process)
    assert code == 0, out + err
    gone(everyone)
    run_dir = only_run(tmp_path)
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["step"], result["attempts"]) == (600, 3)
    assert "warning: ps-0 was killed by SIGKILL" in out
    assert "warning: chief-0 was killed by SIGKILL" in out
    assert [line for line in out.splitlines() if line.startswith("Continuing")] == [
        f"Continuing from the checkpoint of step {step}." for step in (150, 350)
    ]
    # What the lost attempts had trained since then was lost with them, the counts too.
    assert set(counts(run_dir)) == {1}
    assert train_lines(tmp_path)[-1]["steps_repeated"] == 0
    assert "a second time" not in out


@pytest.mark.slow
def test_stop_of_any_process_saves_first_and_the_same_command_continues(begin, tmp_path):
    saved = None
    for task in ("ps-0", "worker-0", "chief-0", "supervisor"):
        live = begin(
            tmp_path,
            *SMALL,
            "strategy.workers=1",
            "train.steps=1000000",
            "summary.every_steps=20",
        )
        logged = len(train_lines(tmp_path))
        live.until(lambda logged=logged: len(train_lines(tmp_path)) > logged)
        everyone = live.hold("chief-0", "ps-0", "worker-0")
        os.kill(live.process.pid if task == "supervisor" else live.pid(task), signal.SIGTERM)
        code, out, err = finish(live.process)
        assert code == 143, task + out + err
        assert "Stopped after saving; the same command continues." in out
        gone(everyone)
        assert saved is None or f"Continuing from the checkpoint of step {saved}." in out
        saved = int(final_variables(only_run(tmp_path))["step/.ATTRIBUTES/VARIABLE_VALUE"])
        assert saved >= train_lines(tmp_path)[-1]["step"]


@pytest.mark.long
def test_stopped_server_of_a_declared_cluster_stops_all_processes(tmp_path):
    tasks = [ProcessId("chief", 0), ProcessId("ps", 0), ProcessId("worker", 0)]

    def begin():
        return {
            place.process_id: start(
                tmp_path,
                *SMALL,
                "train.steps=3000",
                "summary.every_steps=20",
                TF_CONFIG=place.tf_config(),
            )
            for place in local_clusters(tasks)
        }

    def end(programs):
        return {str(task): finish(program) for task, program in programs.items()}

    programs = begin()
    try:
        deadline = time.monotonic() + WAIT_SECS
        while len(train_lines(tmp_path)) < 2:
            assert time.monotonic() < deadline, "no step was trained"
            time.sleep(0.02)
        programs[ProcessId("ps", 0)].send_signal(signal.SIGTERM)
        stopped = end(programs)
        assert [code for code, _, _ in stopped.values()] == [143, 143, 143], stopped
        step = int(final_variables(only_run(tmp_path))["step/.ATTRIBUTES/VARIABLE_VALUE"])
        assert 0 < step < 3000
        programs = begin()
        finished = end(programs)
    finally:
        for program in programs.values():
            program.kill()
    assert [code for code, _, _ in finished.values()] == [0, 0, 0], finished
    assert f"Continuing from the checkpoint of step {step}." in finished["chief-0"][1]
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["step"] == 3000
    assert not list(only_run(tmp_path).glob("logs/*.note"))
    # Nobody else moves the variables of a single worker. A line that is written after a stop within
    # its step has no chunk to tell of.
    told = [line["staleness_max"] for line in train_lines(tmp_path) if "staleness_max" in line]
    assert set(told) == {0}
    assert len(told) >= len(train_lines(tmp_path)) - 1


SPLIT = ["strategy.ps=2", "strategy.partitioner=fixed_shards"]
LEARNER = [
    "model.width=8", "model.batch_norm=true", "model.l2=1e-4", "batch.global_size=64",
    "train.ema_decay=0.9", "train.clip_norm=1.0",
    "evaluate.every_epochs=100", "checkpoint.every_epochs=100",
]  # fmt: skip


def held(out: str) -> list[tuple[float, int]]:
    """Return the megabytes and variables of each parameter server, as they were told."""
    return [
        (float(size), int(number))
        for size, number in re.findall(
            r"^ps-\d holds (\S+) MB in (\d+) variables$", out, re.MULTILINE
        )
    ]


@pytest.mark.slow
def test_partitioned_variables_train_and_their_checkpoints_fit_every_strategy(tmp_path):
    code, out, err = run(
        tmp_path,
        "strategy=parameter_server",
        *SPLIT,
        *LEARNER,
        "train.steps=60",
        "summary.every_steps=10",
    )
    assert code == 0, out + err
    run_dir = only_run(tmp_path)
    saved, result = final_variables(run_dir), json.loads((run_dir / "result.json").read_text())
    losses = [line["loss"] for line in train_lines(tmp_path)]
    assert losses[-1] < 0.8 * losses[0]
    ((first, first_number), (second, second_number)) = held(out)
    assert first + second == pytest.approx(
        sum(value.nbytes for value in saved.values()) / 1e6, abs=0.011
    )
    assert first_number + second_number > len(saved)  # shards
    assert min(first, second) > 0.5 * max(first, second)
    continue_on_one_device(run_dir, saved, result["metrics"])
    # And with other shards.
    code, out, err = run(
        tmp_path,
        f"resume={run_dir}",
        "train.steps=80",
        "strategy.partitioner=max_size",
        "strategy.shard_bytes=4096",
    )
    assert code == 0, out + err
    assert "Continuing from the checkpoint of step 70." in out
    assert json.loads((run_dir / "result.json").read_text())["step"] == 80
    assert_serves_whole_variables(tmp_path, run_dir)


def continue_on_one_device(run_dir, saved, metrics):
    """Assert that every variable is there, whole, and gives the same metrics; train on."""
    alone = training.engine(run_dir, *LEARNER, "model.dropout=0.25", "train.steps=70")
    assert alone.checkpointer.restore_latest() == 60
    assert alone.evaluator.evaluate(lambda: False).metrics == pytest.approx(metrics, rel=1e-5)
    restored = [
        value
        for name, value in sorted(training.variables(alone).items())
        if name.startswith(("/averages", "/optimizers"))
    ]
    known = [
        value
        for name, value in sorted(saved.items())
        if name.startswith(("averages", "optimizers"))
    ]
    assert len(restored) == len(known)
    assert sum(np.abs(value.astype(float)).sum() for value in restored) == pytest.approx(
        sum(np.abs(v.astype(float)).sum() for v in known)
    )
    alone.train(lambda: False)
    assert alone.step == 70


def assert_serves_whole_variables(directory, run_dir):
    code, _, err = run(directory, f"resume={run_dir}", "mode=export")
    assert code == 0, err
    served = tf.saved_model.load(run_dir / "export" / "model-80" / "saved_model")
    assert served.signatures["serving_default"](features=tf.zeros([2, 8, 8, 1]))[
        "probabilities"
    ].shape == [2, 10]


@pytest.mark.long
def test_partitioned_variables_have_the_same_initial_values(tmp_path):
    options = [*LEARNER, "model.dropout=0.25", "optimizer.learning_rate=1e-12", "train.steps=1"]
    code, out, err = run(tmp_path, "strategy=parameter_server", *SPLIT, *options)
    assert code == 0, out + err
    split = final_variables(only_run(tmp_path))
    training.train(tmp_path / "runs" / "one", *options)
    whole = final_variables(tmp_path / "runs" / "one")
    assert split.keys() == whole.keys()
    for name in split:
        if "kernel" in name:
            np.testing.assert_allclose(split[name], whole[name], atol=1e-9, err_msg=name)


@pytest.mark.long
def test_workers_read_files_and_report_a_corrupt_one_once(tmp_path):
    for number in range(24):
        folder = tmp_path / "images" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = tf.cast(
            tf.random.stateless_uniform([8, 8, 3], [number, 0], 0, 255, tf.int32), tf.uint8
        )
        tf.io.write_file(str(folder / f"{number}.png"), tf.io.encode_png(image))
    (tmp_path / "images" / "a" / "0.png").write_bytes(b"no image")
    files = [
        "dataset=image_folder",
        "dataset.path=images",
        "dataset.image_size=[8,8]",
        "dataset.max_corrupt_records=1",
        "train.steps=20",
    ]
    code, out, err = run(tmp_path, *SMALL, *files)
    assert code == 0, out + err
    assert (
        out.count(
            "warning: skipped images/a/0.png, which is no JPEG or PNG image: 1 of at most 1\n"
        )
        == 1
    )
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["step"] == 20


def test_server_lost_during_a_save_is_not_reported_as_a_disk_error(tmp_path, monkeypatch):
    checkpoints = Checkpointer(tmp_path, {"x": tf.Variable(1.0)})

    def lost(camera):
        raise tf.errors.UnavailableError(None, None, "failed to connect to all addresses")

    monkeypatch.setattr("trainer.engine.checkpoints.snapshot.SnapshotReader.capture", lost)
    with pytest.raises(tf.errors.UnavailableError):
        checkpoints.save(1, None)


@pytest.mark.long
def test_frozen_worker_is_replaced_alone_and_a_frozen_server_ends_the_attempt(begin, tmp_path):
    stall = ["watchdog.stall_secs=15", "checkpoint.every_steps=50", "checkpoint.every_epochs=null"]
    live, everyone = begin(tmp_path, *counting(tmp_path, 600, [152, 352]), *stall), {}
    for gate, number, frozen in ((152, 2, "worker-1"), (352, 1, "ps-0")):
        # Both at the first; at the second the one that was replaced may still be on its way.
        live.until(
            lambda gate=gate, number=number: (
                len(list((tmp_path / "gates").glob(f"waits-{gate}-*"))) >= number
            )
        )
        everyone |= live.hold("chief-0", "ps-0", "worker-0", "worker-1")
        os.kill(live.pid(frozen), signal.SIGSTOP)
        live.open(gate)
    code, out, err = finish(live.process)
    assert code == 0, out + err
    gone(everyone)
    assert "warning: worker-1 makes no progress: serve at step 0" in out
    assert "warning: worker-1 was killed by SIGKILL; starting it again alone" in out
    assert "warning: ps-0 was stopped by a signal" in out
    result = json.loads((only_run(tmp_path) / "result.json").read_text())
    assert (result["step"], result["attempts"]) == (600, 2)
