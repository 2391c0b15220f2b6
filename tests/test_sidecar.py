"""Evaluation beside the training: the same numbers, each checkpoint once, whatever dies, and gone when the run is."""

import io
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from tests.processes import OPTIONS, final_variables, finish, only_run, run, start, wait_gone
from tests.training import SMALL, assert_same_bits, engine
from trainer import build, group, launch, sidecar
from trainer.channel import Channel
from trainer.cli import compose
from trainer.cluster import Cluster, Task
from trainer.console import Console
from trainer.errors import ConfigError
from trainer.faults import Faults
from trainer.group import Group
from trainer.sidecar import Sidecar
from trainer.strategies.base import Strategy

RUN = (
    "model.dropout=0.3", "model.batch_norm=true", "train.ema_decay=0.9", "evaluate.every_steps=2", "checkpoint.every_steps=2",
    "checkpoint.keep=10",
)  # fmt: skip
EXPERIMENT = compose([*SMALL, *RUN, "evaluate.sidecar=true"])
ALONE = Cluster(Task("evaluator", 0))


def lines(run_dir, name="evaluations.jsonl"):
    return [json.loads(line) for line in (run_dir / name).read_text().splitlines()]


def lines_of_test(run_dir):
    return [line for line in lines(run_dir, "metrics.jsonl") if line["split"] == "test"]


def finished(run_dir):
    (run_dir / "result.json").write_text(json.dumps({"train": {"steps": 8, "epochs": None}}))


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """A run that evaluated itself at every checkpoint."""
    run_dir = tmp_path_factory.mktemp("inline")
    engine(run_dir, *RUN).train(lambda: False)
    return run_dir


@pytest.fixture(scope="module")
def parts(inline):
    return build.sidecar(EXPERIMENT, inline, Channel(lambda message: None), ALONE)


NO_FAULTS = Faults({}, Path(), Cluster(), Channel(lambda message: None), ())


class Told(list):
    """What was told, and a sidecar's channel and parts with it; the parts look at any run's checkpoints."""

    def __init__(self, parts):
        self.parts = parts

    def of(self, run_dir, before=lambda: None):
        def made():
            before()
            self.parts.checkpoints.directory = run_dir / "checkpoints"
            return self.parts

        return Sidecar(run_dir, EXPERIMENT, made, Channel(self.append), NO_FAULTS)

    @property
    def texts(self):
        return [message["text"] for message in self if message["kind"] in ("line", "evaluated")]


@pytest.fixture
def told(parts, monkeypatch):
    monkeypatch.setattr(sidecar, "_LOOK_SECS", 0)
    return Told(parts)


@pytest.fixture
def run_dir(inline, tmp_path):
    """A finished run with the checkpoints of steps 2, 4, 6 and 8, none of them evaluated."""
    (tmp_path / "checkpoints").mkdir()
    for file in (inline / "checkpoints").iterdir():
        (tmp_path / "checkpoints" / file.name).write_bytes(file.read_bytes())
    finished(tmp_path)
    return tmp_path


def test_every_checkpoint_gives_the_bits_that_the_training_would_have_given(inline, run_dir, told):
    assert told.of(run_dir).run(lambda: False, told=True)
    assert lines(run_dir) == lines_of_test(inline)
    assert [line["step"] for line in lines(run_dir)] == [2, 4, 6, 8]
    assert told.texts[0] == f"step 2: test loss {lines(run_dir)[0]['loss']:.4f}, accuracy {lines(run_dir)[0]['accuracy']:.4f}"
    assert not (run_dir / "metrics.jsonl").exists()
    assert not (run_dir / "ledger.jsonl").exists()


def test_started_again_it_does_what_is_left(inline, run_dir, told):
    first, second, *_ = lines_of_test(inline)
    (run_dir / "evaluations.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n" + '{"step": 6, "spl')
    assert told.of(run_dir).run(lambda: False, told=True)
    assert lines(run_dir) == lines_of_test(inline)
    assert [text.split(":")[0] for text in told.texts] == ["step 6", "step 8"]


def test_a_damaged_checkpoint_is_skipped_with_one_warning_until_it_is_written_anew(inline, run_dir, told):
    data = run_dir / "checkpoints" / "ckpt-4.data-00000-of-00001"
    sound, looks = data.read_bytes(), []
    data.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    (run_dir / "result.json").unlink()

    def stop():
        looks.append(len(told.texts))
        if len(looks) == 30:  # several looks later
            warning = f"warning: skipped the checkpoint of step 4: the content of {data.name} has changed"
            assert [text if "warning" in text else text.split(":")[0] for text in told.texts] == ["step 2", warning, "step 6", "step 8"]
            data.write_bytes(sound)
            os.utime(run_dir / "checkpoints" / "ckpt-4.json")
            finished(run_dir)
        return False

    assert told.of(run_dir).run(stop, told=True)
    assert sorted(lines(run_dir), key=lambda line: line["step"]) == lines_of_test(inline)
    assert [text.split(":")[0] for text in told.texts[4:]] == ["step 4"]


def remove(run_dir, step):
    for file in (run_dir / "checkpoints").glob(f"ckpt-{step}.*"):
        file.unlink()


def test_a_checkpoint_that_goes_before_it_is_verified_is_nothing_to_speak_of(run_dir, told, monkeypatch):
    verify = sidecar.verify
    monkeypatch.setattr(sidecar, "verify", lambda directory, step: (remove(run_dir, 4), verify(directory, step))[1])
    assert told.of(run_dir).run(lambda: False, told=True)
    assert [line["step"] for line in lines(run_dir)] == [2, 6, 8]
    assert not [text for text in told.texts if "warning" in text]


def test_a_checkpoint_that_goes_before_it_is_restored_is_nothing_to_speak_of(run_dir, told):
    assert told.of(run_dir, before=lambda: remove(run_dir, 2)).run(lambda: False, told=True)
    assert [line["step"] for line in lines(run_dir)] == [4, 6, 8]
    assert not [text for text in told.texts if "warning" in text]


def test_a_stop_leaves_no_half_evaluation(run_dir, told):
    assert not told.of(run_dir).run(lambda: {"kind": "phase", "phase": "evaluate", "step": 2} in told, told=False)
    assert lines(run_dir) == []


def test_one_that_is_told_when_to_leave_waits_for_that(run_dir, told):
    (run_dir / "result.json").unlink()
    count = iter(range(100))

    def stop():
        if next(count) == 10:
            finished(run_dir)  # or the supervisor ends this process
        return True

    assert not told.of(run_dir).run(stop, told=True)
    assert {"kind": "phase", "phase": "wait", "step": 0} in told


def test_the_result_of_another_length_is_not_the_end(run_dir, told):
    (run_dir / "result.json").write_text(json.dumps({"train": {"steps": 4, "epochs": None}}))
    looks = iter(range(100))

    def stop():
        if next(looks) == 50:
            finished(run_dir)
        return False

    assert told.of(run_dir).run(stop, told=True)
    assert next(looks) > 50


def test_earlier_events_stay_and_later_ones_are_superseded(run_dir, told, monkeypatch):
    # Event files of the same second are read in the order of their names, in which the tenth of a process comes before the ninth.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    monkeypatch.setattr(EXPERIMENT.summary, "writers", ["jsonl", "tensorboard"])
    remove(run_dir, 2)
    for left in (8, 4):  # of 4, 6 and 8; then again all but the first
        assert told.of(run_dir).run(lambda: False, told=True)
        kept = [line for line in lines(run_dir) if line["step"] <= left]
        (run_dir / "evaluations.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in kept))
    events = EventAccumulator(str(run_dir / "events" / "eval")).Reload()
    assert [event.step for event in events.Tensors("accuracy")] == [4, 6, 8]
    assert not (run_dir / "events" / "train").exists()


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["callbacks=early_stopping"], "leaves callbacks (early_stopping) without evaluations; remove them or add evaluate.sidecar=false"),
        (
            ["checkpoint.best.metric=accuracy"],
            "leaves checkpoints without checkpoint.best.metric (accuracy) when they are saved; "
            "add checkpoint.best.metric=null or evaluate.sidecar=false",
        ),
        (
            ["summary.writers=[jsonl,wandb]"],
            "leaves summary.writers (wandb) without evaluations, for they take a run from one process; "
            "remove them or add evaluate.sidecar=false",
        ),
        (["launch=inline"], "needs a process of its own, launch.inline (true) allows none; add evaluate.sidecar=false"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides, line):
    with pytest.raises(ConfigError) as raised:
        compose(["evaluate.sidecar=true", *overrides])
    assert raised.value.problems == (f"evaluate.sidecar (true) {line}",)


def test_other_modes_take_over_the_key_and_what_it_refuses(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "run.json").write_text(json.dumps({"overrides": ["evaluate.sidecar=true"], "config_dir": None}))
    experiment = compose(["mode=evaluate", f"resume={tmp_path}", "launch=inline"])
    assert experiment.evaluate.sidecar
    assert launch._evaluators(experiment, None) == []


@pytest.mark.parametrize(
    ("declared", "starts"),
    [
        (None, True),
        (Cluster(Task("worker", 0), {"worker": ["a:1", "b:1"]}, "Slurm"), True),
        (Cluster(Task("worker", 1), {"worker": ["a:1", "b:1"]}, "Slurm"), False),
        (Cluster(Task("worker", 0), {"worker": ["a:1", "b:1"]}, "TF_CONFIG"), False),
        (Cluster(Task("evaluator", 0), {}, "TF_CONFIG"), False),
    ],
)
def test_the_chiefs_program_starts_it_unless_tf_config_has_a_task_for_it(declared, starts):
    assert launch._evaluators(EXPERIMENT, declared) == ([ALONE] if starts else [])
    assert launch._evaluators(compose([]), declared) == []


def test_a_declared_evaluator_needs_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:2222"]}, "task": {"type": "evaluator", "index": 0}}))
    with pytest.raises(ConfigError) as raised:
        launch.run(compose(["strategy=multi_worker"]), [])
    assert raised.value.problems == (
        "TF_CONFIG: evaluator-0 needs mode=train and evaluate.sidecar=true in the command of every process; here they are train and false",
    )
    assert list(tmp_path.iterdir()) == []


class Members:
    """A group of processes that do as they are told: each takes the next of its ends, one after another."""

    def __init__(self, tmp_path, ends):
        self.ends, self.processes, self.started = list(ends), {}, False
        self.left, self.signalled, self.discarded, self.shown = [], [], [], []
        self.group = Group(
            SimpleNamespace(path=tmp_path),
            compose([]),
            Strategy(),
            [Cluster(Task("worker", 0)), Cluster(Task("worker", 1), {"chief": ["nobody"]}), ALONE],
            self._console(),
            lambda: Member(self),
            lambda: True,
        )

    def _console(self):
        console = Console(io.StringIO(), io.StringIO())
        console.line = console.error = self.shown.append
        return console

    def go(self):
        while self.ends and self.ends[0][0] in self.processes:
            name, code = self.ends.pop(0)
            process = self.processes.pop(name)
            process.messages.put({"kind": "exit", "code": code, "from": process.task})


class Member:
    def __init__(self, members):
        self.members = members

    def assign(self, run_dir, experiment, member, messages):
        self.task, self.messages = member.task, messages
        self.members.processes[str(member.task)] = self
        if len(self.members.processes) == 3 or self.members.started:
            self.members.started = True
            self.members.go()

    def leave(self):
        self.members.left.append(str(self.task))
        self.members.processes.pop(str(self.task))
        self.messages.put({"kind": "exit", "code": 0, "from": self.task})

    def request(self, number):
        self.members.signalled.append((str(self.task), number))

    def is_stopped(self):
        return False

    def discard(self):
        self.members.discarded.append(str(self.task))


@pytest.fixture
def members(tmp_path):
    return lambda *ends: Members(tmp_path, ends)


def test_a_group_lets_it_finish_when_the_training_is_done(members):
    made = members(("worker-0", 0), ("worker-1", 0), ("evaluator-0", 0))
    assert made.group.run() == 0
    assert (made.left, made.discarded) == ([], [])


def test_a_group_does_not_wait_for_it_when_the_training_was_stopped(members):
    made = members(("worker-0", 143), ("worker-1", 143))
    assert made.group.run() == 143
    assert made.left == ["evaluator-0"]


@pytest.mark.parametrize("code", [1, -signal.SIGKILL])
def test_a_group_ends_it_when_the_attempt_failed(members, code):
    made = members(("worker-1", code))
    assert made.group.run() == code
    assert sorted(made.discarded) == ["evaluator-0", "worker-0"]


def test_a_group_starts_it_again_alone(members):
    made = members(("evaluator-0", -signal.SIGKILL), ("worker-0", 0), ("worker-1", 0), ("evaluator-0", -signal.SIGKILL), ("evaluator-0", 0))
    assert made.group.run() == 0
    assert made.shown == ["warning: evaluator-0 was killed by SIGKILL; starting it again alone"] * 2
    assert made.group.failed is None


def test_a_group_waits_for_a_worker_that_does_not_leave_only_as_long_as_it_evaluates(members, monkeypatch):
    monkeypatch.setattr(group, "_LEAVE_SECS", 0.0)
    made = members(("worker-0", 0), ("evaluator-0", 0))
    assert made.group.run() == 0
    assert made.discarded == ["worker-1"]


def test_a_group_passes_a_signal_to_those_who_train(members):
    made = members(("worker-0", 143), ("worker-1", 143))
    begin = made.group._begin

    def beginning(member):
        if member == ALONE:
            made.group.signal(signal.SIGTERM)
        begin(member)

    made.group._begin = beginning
    assert made.group.run() == 143
    assert made.signalled == [("worker-0", signal.SIGTERM), ("worker-1", signal.SIGTERM)]


# Real processes.

SIDECAR = [*OPTIONS, "evaluate.every_steps=3", "evaluate.sidecar=true"]

WATCHED = '''
import os, pathlib, signal
import tensorflow as tf
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
            os.kill(os.getpid() if self.to == "itself" else os.getppid(), self.number)
'''


def watched(directory: Path, number: int, to: str) -> list[str]:
    (directory / "watched.py").write_text(WATCHED)
    return ["~task.label_smoothing", "task._target_=watched.Watched", f"+task.number={int(number)}", f"+task.to={to}"]


def events(run_dir):
    accumulator = EventAccumulator(str(run_dir / "events" / "eval")).Reload()
    return [event.step for event in accumulator.Tensors("accuracy")]


@pytest.mark.slow
def test_a_run_with_it_that_is_killed_in_the_middle_is_the_run_without_it(tmp_path):
    runs = []
    for name, options in (("inline", ["evaluate.sidecar=false"]), ("beside", ["checkpoint.keep=100"])):
        (tmp_path / name).mkdir()
        code, out, err = run(tmp_path / name, *SIDECAR, *options, *watched(tmp_path / name, signal.SIGKILL, "itself"))
        assert code == 0, err
        runs.append(only_run(tmp_path / name))
    one, other = runs
    assert one.name == other.name
    assert out.count("warning: evaluator-0 was killed by SIGKILL; starting it again alone") == 1
    assert lines(other) == lines_of_test(one)
    assert [line["step"] for line in lines(other)] == [3, 6, 9, 12, 15, 18, 21, 24] == events(other)
    assert out.count(": test loss") == 8
    assert lines_of_test(other) == []
    results = [json.loads((run_dir / "result.json").read_text()) for run_dir in runs]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[1]["attempts"] == 1
    assert_same_bits(final_variables(one), final_variables(other))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["itself", "supervisor"])
def test_a_stop_of_the_program_or_of_it_is_a_stop_of_all(tmp_path, to):
    endless = ["train.steps=10000000", "checkpoint.every_steps=20", "summary.every_steps=100"]
    code, out, err = run(tmp_path, *SIDECAR, *endless, *watched(tmp_path, signal.SIGTERM, to))
    assert code == 143, out + err
    assert out.count("Stopped after saving; the same command continues.") == 1
    wait_gone(int((tmp_path / "sent").read_text()))
    assert len(lines(only_run(tmp_path))) >= 2
    assert not (only_run(tmp_path) / "result.json").exists()


@pytest.mark.slow
def test_beside_two_workers_with_the_usual_retention(tmp_path):
    code, out, err = run(tmp_path, *SIDECAR, "strategy=multi_worker")
    assert code == 0, out + err
    run_dir = only_run(tmp_path)
    steps = [line["step"] for line in lines(run_dir)]
    assert steps == sorted(set(steps)) == events(run_dir)
    assert {21, 24} <= set(steps) <= {3, 6, 9, 12, 15, 18, 21, 24}
    result = json.loads((run_dir / "result.json").read_text())["metrics"]
    assert result == pytest.approx({name: lines(run_dir)[-1][name] for name in result}, rel=1e-5)
    assert (run_dir / "logs" / "evaluator-0.log").exists()


@pytest.mark.slow
def test_a_task_of_a_declared_cluster(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        cluster = {"worker": [f"127.0.0.1:{free.getsockname()[1]}"]}

    def started(job) -> subprocess.Popen:
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}}))
        return start(tmp_path, *SIDECAR, "strategy=multi_worker")

    evaluator, worker = started("evaluator"), started("worker")
    (code, out, err), trained = finish(evaluator), finish(worker)
    assert (code, trained[0]) == (0, 0), err + trained[2]
    assert "test loss" not in trained[1].split("Done:")[0]
    assert out.splitlines()[-4].startswith("step 24: test loss")
    assert out.splitlines()[-3].startswith("Done: step 24")
    before = (only_run(tmp_path) / "evaluations.jsonl").read_bytes()
    code, _, err = finish(started("evaluator"))
    assert code == 0, err
    assert (only_run(tmp_path) / "evaluations.jsonl").read_bytes() == before
