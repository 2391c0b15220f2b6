"""Sidecar evaluation: the same numbers, each checkpoint once, also after kills."""

import json
import os
import re
import signal
import socket
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from tests.support.processes import (
    OPTIONS,
    SIGNALER,
    final_variables,
    finish,
    only_run,
    output_of,
    run,
    start,
    succeed,
    wait_gone,
)
from tests.support.training import SMALL, assert_same_bits, engine
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Evaluated, Line, Phase
from trainer.cluster.spec import Cluster, ProcessId
from trainer.launch import launcher
from trainer.worker import sidecar_evaluator
from trainer.worker.run import SavedRun
from trainer.worker.sidecar_evaluator import Sidecar

RUN = (
    "model.dropout=0.3", "model.batch_norm=true", "train.ema_decay=0.9", "evaluate.every_steps=2",
    "checkpoint.every_steps=2", "checkpoint.keep=10",
)  # fmt: skip
EXPERIMENT = compose([*SMALL, *RUN, "evaluate.sidecar=true"])
ALONE = Cluster(ProcessId("evaluator", 0))


def lines(run_dir, name="evaluations.jsonl"):
    return [json.loads(line) for line in (run_dir / name).read_text().splitlines()]


def lines_of_test(run_dir):
    return [line for line in lines(run_dir, "metrics.jsonl") if line["split"] == "test"]


def write_result(run_dir):
    (run_dir / "result.json").write_text(json.dumps({"train": {"steps": 8, "epochs": None}}))


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """A run that evaluated itself at every checkpoint."""
    run_dir = tmp_path_factory.mktemp("inline")
    engine(run_dir, *RUN).train(lambda: False)
    return run_dir


@pytest.fixture(scope="module")
def evaluating(inline):
    """A process that has evaluated: all that it has compiled is used for any run."""
    run = SavedRun(EXPERIMENT, inline, Channel(lambda message: None), ALONE)
    sidecar = Sidecar(run, run.faults)
    return run, sidecar._build()


class Messages(list):
    """The messages of a sidecar, which evaluates any run's checkpoints with one evaluator."""

    def __init__(self, evaluating):
        self.run, self.evaluator = evaluating

    def evaluate(self, run_dir, stop=lambda: False, *, dismissed=True):
        run = self.run
        run.run_dir, run.channel, run.stop_requested = run_dir, Channel(self.append), stop
        run.checkpointer.directory = run_dir / "checkpoints"
        sidecar = Sidecar(run, run.faults)
        sidecar._evaluator = self.evaluator
        return sidecar.run(dismissed=dismissed)

    @property
    def texts(self):
        return [message.text for message in self if isinstance(message, Line | Evaluated)]


@pytest.fixture
def messages(evaluating, monkeypatch):
    monkeypatch.setattr(sidecar_evaluator, "_POLL_SECS", 0)
    return Messages(evaluating)


@pytest.fixture
def run_dir(inline, tmp_path):
    """A finished run with the checkpoints of steps 2, 4, 6 and 8, none of them evaluated."""
    (tmp_path / "checkpoints").mkdir()
    for file in (inline / "checkpoints").iterdir():
        (tmp_path / "checkpoints" / file.name).write_bytes(file.read_bytes())
    write_result(tmp_path)
    return tmp_path


def test_sidecar_evaluates_every_checkpoint_to_the_bits_of_the_training(inline, run_dir, messages):
    assert messages.evaluate(run_dir)
    assert lines(run_dir) == lines_of_test(inline)
    assert [line["step"] for line in lines(run_dir)] == [2, 4, 6, 8]
    first = lines(run_dir)[0]
    text = f"step 2/8                      test {first['loss']:.4f} {first['accuracy']:.3f}"
    assert messages.texts[0].removesuffix("  best") == text
    assert not (run_dir / "metrics.jsonl").exists()
    assert not (run_dir / "ledger.jsonl").exists()


def test_restarted_sidecar_evaluates_what_is_left(inline, run_dir, messages):
    first, second, *_ = lines_of_test(inline)
    (run_dir / "evaluations.jsonl").write_text(
        f"{json.dumps(first)}\n{json.dumps(second)}\n" + '{"step": 6, "spl'
    )
    assert messages.evaluate(run_dir)
    assert lines(run_dir) == lines_of_test(inline)
    assert [text.split("/")[0] for text in messages.texts] == ["step 6", "step 8"]


def test_damaged_checkpoint_is_skipped_with_one_warning_until_rewritten(inline, run_dir, messages):
    data = run_dir / "checkpoints" / "ckpt-4.data-00000-of-00001"
    content = data.read_bytes()
    polls = []
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (run_dir / "result.json").unlink()

    def stop():
        polls.append(len(messages.texts))
        if len(polls) == 30:  # several polls later
            warning = (
                f"warning: skipped the checkpoint of step 4: the content of {data.name} has changed"
            )
            assert [
                text if "warning" in text else text.split("/")[0] for text in messages.texts
            ] == ["step 2", warning, "step 6", "step 8"]
            data.write_bytes(content)
            os.utime(run_dir / "checkpoints" / "ckpt-4.json")
            write_result(run_dir)
        return False

    assert messages.evaluate(run_dir, stop)
    assert sorted(lines(run_dir), key=lambda line: line["step"]) == lines_of_test(inline)
    assert [text.split("/")[0] for text in messages.texts[4:]] == ["step 4"]


def remove(run_dir, step):
    for file in (run_dir / "checkpoints").glob(f"ckpt-{step}.*"):
        file.unlink()


def test_checkpoint_removed_before_verification_is_no_warning(run_dir, messages, monkeypatch):
    verify = sidecar_evaluator.verify
    monkeypatch.setattr(
        sidecar_evaluator,
        "verify",
        lambda directory, step: (remove(run_dir, 4), verify(directory, step))[1],
    )
    assert messages.evaluate(run_dir)
    assert [line["step"] for line in lines(run_dir)] == [2, 6, 8]
    assert not [text for text in messages.texts if "warning" in text]


def test_stop_leaves_no_partial_evaluation(run_dir, messages):
    assert not messages.evaluate(run_dir, lambda: Phase("evaluate", 2) in messages, dismissed=False)
    assert lines(run_dir) == []


def test_dismissed_sidecar_waits_for_its_supervisor(run_dir, messages):
    (run_dir / "result.json").unlink()
    count = iter(range(100))

    def stop():
        if next(count) == 10:
            write_result(run_dir)  # or the supervisor ends this process
        return True

    assert not messages.evaluate(run_dir, stop)
    assert Phase("wait", 0) in messages


@pytest.mark.slow
def test_restart_keeps_earlier_events_and_supersedes_later_ones(run_dir, messages, monkeypatch):
    # Event files of one second are read in the order of their names, where the tenth of a process
    # comes before the ninth.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    writers = compose([*SMALL, "writers=[jsonl,tensorboard]"]).writers
    monkeypatch.setattr(EXPERIMENT, "writers", writers)
    remove(run_dir, 2)
    for left in (8, 4):  # of 4, 6 and 8; then again all but the first
        assert messages.evaluate(run_dir)
        kept = [line for line in lines(run_dir) if line["step"] <= left]
        (run_dir / "evaluations.jsonl").write_text(
            "".join(f"{json.dumps(line)}\n" for line in kept)
        )
    events = EventAccumulator(str(run_dir / "events" / "evaluator")).Reload()
    assert [event.step for event in events.Tensors("metrics/accuracy/test")] == [4, 6, 8]
    assert [path.name for path in (run_dir / "events").iterdir()] == ["evaluator"]


def sidecars(experiment, cluster):
    return launcher._beside(SimpleNamespace(experiment=experiment, cluster=cluster))


@pytest.mark.parametrize(
    ("cluster", "starts"),
    [
        (Cluster(), True),
        (Cluster(ProcessId("worker", 0), {"worker": ["a:1", "b:1"]}, "Slurm"), True),
        (Cluster(ProcessId("worker", 1), {"worker": ["a:1", "b:1"]}, "Slurm"), False),
        (Cluster(ProcessId("worker", 0), {"worker": ["a:1", "b:1"]}, "TF_CONFIG"), False),
        (Cluster(ProcessId("evaluator", 0), {}, "TF_CONFIG"), False),
    ],
)
def test_supervisor_of_the_chief_starts_it_unless_tf_config_has_one(cluster, starts):
    assert sidecars(EXPERIMENT, cluster) == ([ALONE] if starts else [])
    assert sidecars(compose([]), cluster) == []


# Real processes.

SIDECAR = [*OPTIONS, "evaluate.every_steps=3", "evaluate.sidecar=true"]

WATCHED = '''
import os, pathlib, signal
import tensorflow as tf
from signaler import supervisor
from trainer.tasks.classification import Classification

class Watched(Classification):
    """In the process that evaluates, sends a signal in the middle of its third evaluation, once."""

    def __init__(self, *, number: int, to: str) -> None:
        super().__init__()
        self.number, self.to, self.batches = number, to, 0

    def eval_step(self, batch):
        losses, others = super().eval_step(batch)
        with tf.control_dependencies([tf.py_function(self.count, [], [])]):
            return tf.identity(losses), others

    def count(self):
        sent = pathlib.Path("sent")
        self.batches += os.readlink("/proc/self/fd/2").endswith("evaluator-0.log")
        if self.batches == 2 * 23 + 5 and not sent.exists():
            sent.write_text(str(os.getpid()))
            os.kill(os.getpid() if self.to == "itself" else supervisor(), self.number)
'''


def watched(directory, number, to):
    (directory / "signaler.py").write_text(SIGNALER)
    (directory / "watched.py").write_text(WATCHED)
    return [
        "~task.label_smoothing",
        "~task.class_weights",
        "~task.focal_gamma",
        "task._target_=watched.Watched",
        f"+task.number={int(number)}",
        f"+task.to={to}",
    ]


def events(run_dir):
    accumulator = EventAccumulator(str(run_dir / "events" / "evaluator")).Reload()
    return [event.step for event in accumulator.Tensors("metrics/accuracy/test")]


@pytest.mark.slow
def test_run_with_a_killed_sidecar_equals_the_run_without_it(tmp_path):
    runs = []
    for name, options in (
        ("inline", ["evaluate.sidecar=false"]),
        ("sidecar", ["checkpoint.keep=100"]),
    ):
        (tmp_path / name).mkdir()
        out = succeed(
            tmp_path / name, *SIDECAR, *options, *watched(tmp_path / name, signal.SIGKILL, "itself")
        )
        runs.append(only_run(tmp_path / name))
    one, other = runs
    assert one.name == other.name
    assert out.count("warning: evaluator-0 was killed by SIGKILL; starting it again alone") == 1
    assert lines(other) == lines_of_test(one)
    assert [line["step"] for line in lines(other)] == [3, 6, 9, 12, 15, 18, 21, 24] == events(other)
    assert len(re.findall(r"^step .*  test \d", out, re.MULTILINE)) == 8
    assert lines_of_test(other) == []
    results = [json.loads((run_dir / "result.json").read_text()) for run_dir in runs]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[1]["attempts"] == 1
    assert_same_bits(final_variables(one), final_variables(other))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["itself", "supervisor"])
def test_stop_of_the_supervisor_or_the_sidecar_stops_all(tmp_path, to):
    endless = ["train.steps=10000000", "checkpoint.every_steps=20", "summary.every_steps=100"]
    code, out, err = run(tmp_path, *SIDECAR, *endless, *watched(tmp_path, signal.SIGTERM, to))
    assert code == 143, out + err
    assert out.count("Stopped after saving; the same command continues.") == 1
    wait_gone(int((tmp_path / "sent").read_text()))
    assert len(lines(only_run(tmp_path))) >= 2
    assert not (only_run(tmp_path) / "result.json").exists()


@pytest.mark.slow
def test_sidecar_of_a_declared_cluster(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        cluster = {"worker": [f"127.0.0.1:{free.getsockname()[1]}"]}

    def started(job):
        monkeypatch.setenv(
            "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
        )
        return start(tmp_path, *SIDECAR, "strategy=multi_worker")

    evaluator, worker = started("evaluator"), started("worker")
    (code, out, err), trained = finish(evaluator), finish(worker)
    assert (code, trained[0]) == (0, 0), err + trained[2]
    assert "  test " not in trained[1].split("Done:")[0]
    assert out.splitlines()[-4].startswith("step 24/24  ")
    assert out.splitlines()[-3].startswith("Done: step 24")
    before = (only_run(tmp_path) / "evaluations.jsonl").read_bytes()
    output_of(started("evaluator"))
    assert (only_run(tmp_path) / "evaluations.jsonl").read_bytes() == before
