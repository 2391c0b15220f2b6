"""The driver with simulated point processes; `test_sweep_processes.py` starts real ones."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.support.command_line import run_here
from trainer.cluster.messages import (
    ErrorLine,
    Evaluated,
    Exit,
    Leave,
    Problem,
    SignalReceived,
)
from trainer.cluster.signals import SAVES
from trainer.errors import ConfigError
from trainer.sweep import driver
from trainer.sweep.driver import ResourceShare, divide
from trainer.sweep.search import GridSearch

Behavior = Callable[["FakeProcess"], None]


class FakeProcess:
    """Stands for the process of a point."""

    behaviors: dict[int, list[Behavior]]  # of the points with a seed, one for each start
    started: list[FakeProcess]
    has_lost_server = False

    def __init__(self, point, pause, share, config_dir, messages, server):
        self.point = point
        self.share = share
        self.messages = messages
        self.signals = []
        self.seed = point.experiment.seed
        self.started.append(self)
        behaviors = self.behaviors.get(self.seed, [])
        behavior = behaviors.pop(0) if behaviors else succeed
        behavior(self)

    def emit(self, message):
        self.messages.put((self.point.number, message))

    def exit(self, code, text=""):
        self.emit(Exit(code, text))

    def send(self, message):
        number = message.number if isinstance(message, SignalReceived) else None
        is_first_stop = {*SAVES}.issuperset(self.signals)
        self.signals.append(number)
        if number not in SAVES:
            self.exit(128 + number if number and is_first_stop else 1)

    def kill(self):
        raise AssertionError("a point must be asked to leave, not killed")


def succeed(process):
    path = process.point.path
    train = process.point.experiment.train
    path.mkdir(parents=True, exist_ok=True)
    result = {
        "step": train.steps,
        "metrics": {"loss": process.seed / 10},
        "train": {"steps": train.steps, "epochs": train.epochs},
    }
    (path / "result.json").write_text(json.dumps(result))
    process.exit(0)


def crash(process):
    process.emit(ErrorLine("first cause"))
    process.emit(ErrorLine("a consequence"))
    process.exit(1)


def reject_input(process):
    process.emit(Problem(["no such file", "nor that"]))
    process.exit(2)


def train_until_stopped(process):
    """Do nothing until a signal is forwarded."""


def send_signal_to_driver(number, times=1):
    def behavior(process):
        for _ in range(times):
            os.kill(os.getpid(), number)

    return behavior


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "PointProcess", FakeProcess)
    monkeypatch.setattr(driver, "ForkServer", MagicMock())  # no point needs one
    monkeypatch.setattr(driver, "available_cores", lambda: [0, 1])
    FakeProcess.behaviors = {}
    FakeProcess.started = []


def sweep(*overrides, behaviors=None):
    FakeProcess.behaviors = {seed: list(items) for seed, items in (behaviors or {}).items()}
    FakeProcess.started = []
    return run_here("-m", "model=softmax", "train.steps=2", "sweep.name=s", *overrides)


def started_seeds():
    return [process.seed for process in FakeProcess.started]


def summary():
    points = json.loads(Path("runs/sweeps/s/summary.json").read_text())["points"]
    return {int(point["varied"]["seed"]): point for point in points}


def states():
    return {seed: point["state"] for seed, point in sorted(summary().items())}


def test_driver_runs_every_point_once_and_those_that_a_repeated_sweep_adds():
    outcome = sweep("seed=1,2", "sweep.name=null")
    assert (outcome.code, outcome.err, started_seeds()) == (0, "", [1, 2])
    assert {process.share for process in FakeProcess.started} == {ResourceShare()}
    folder = re.search("^Summary: (.+)$", outcome.out, re.MULTILINE)[1]
    assert f"\n      python train.py report {folder}\n" in outcome.out
    before = Path(folder, "summary.json").read_bytes()
    assert (sweep("seed=1,2", "sweep.name=null").code, started_seeds()) == (0, [])
    assert Path(folder, "summary.json").read_bytes() == before
    assert (sweep("seed=1,3,2").code, started_seeds()) == (0, [3])
    assert states() == {1: "done", 2: "done", 3: "done"}
    assert (sweep("seed=1,2", "resume=never").code, started_seeds()) == (0, [1, 2])
    assert "/sweeps/single-" in sweep("sweep.name=null").out


def test_next_command_exports_the_first_point_of_the_front():
    def finish(loss, accuracy):
        def behavior(process):
            succeed(process)
            path = process.point.path / "result.json"
            metrics = {"loss": loss, "accuracy": accuracy}
            path.write_text(json.dumps({**json.loads(path.read_text()), "metrics": metrics}))

        return behavior

    ends = {1: [finish(0.5, 0.5)], 2: [finish(0.25, 0.75)], 3: [finish(0.125, 0.5)]}
    outcome = sweep("seed=1,2,3", "sweep.metric=[accuracy,loss]", behaviors=ends)
    assert {seed: point["pareto"] for seed, point in summary().items()} == {
        1: False, 2: True, 3: True,
    }  # fmt: skip
    assert outcome.out.endswith(f" mode=export resume={summary()[2]['run']}\n")


def test_failed_points_do_not_stop_the_others():
    outcome = sweep(
        "seed=1,2,3,4,5,6,7",
        behaviors={
            1: [crash],
            2: [reject_input],
            3: [lambda process: process.exit(-signal.SIGKILL)],
            4: [lambda process: process.exit(1, "Traceback ...\nImportError: nothing there")],
            5: [lambda process: process.exit(0)],
            6: [lambda process: process.exit(143)],  # stopped by another program
        },
    )
    assert (outcome.code, started_seeds()) == (1, [1, 2, 3, 4, 5, 6, 7])
    assert list(states().values()) == [*["failed"] * 4, "done", "stopped", "done"]
    assert [summary()[seed]["why"] for seed in range(1, 6)] == [
        "first cause",
        "no such file; nor that",
        "was killed by SIGKILL",
        "ImportError: nothing there",
        "",
    ]
    assert [line.partition(" (")[0] for line in outcome.err.splitlines()] == [
        f"error: point {number} of 7" for number in range(1, 5)
    ]


def test_point_that_has_lost_its_fork_server_starts_again():
    def lose_server(process):
        process.has_lost_server = True
        process.exit(-signal.SIGKILL)

    outcome = sweep("seed=1,2", behaviors={1: [lose_server]})
    assert (outcome.code, started_seeds()) == (0, [1, 1, 2])
    assert states() == {1: "done", 2: "done"}


def test_on_error_stop_stops_the_sweep_after_a_failure():
    outcome = sweep(
        "seed=1,2,3,4",
        "sweep.on_error=stop",
        "sweep.jobs=2",
        behaviors={1: [train_until_stopped], 2: [crash]},
    )
    assert (outcome.code, started_seeds()) == (1, [1, 2])
    assert FakeProcess.started[0].signals == [signal.SIGTERM]
    assert states() == {1: "stopped", 2: "failed", 3: "waiting", 4: "waiting"}


def test_driver_forwards_save_signals_and_a_stop_signal_once():
    save, stop = signal.SIGUSR1, signal.SIGTERM

    def send_both(process):
        send_signal_to_driver(save)(process)
        send_signal_to_driver(stop)(process)

    behaviors = {1: [train_until_stopped], 2: [send_both]}
    outcome = sweep("seed=1,2,3", "sweep.jobs=2", behaviors=behaviors)
    assert (outcome.code, started_seeds()) == (128 + stop, [1, 2])
    for process in FakeProcess.started:
        assert sorted(process.signals) == [save, stop]
    assert states() == {1: "stopped", 2: "stopped", 3: "waiting"}


def test_second_ctrl_c_leaves_at_once_with_exit_code_1(monkeypatch):
    messages = []

    def leave_at_the_second_signal(process):
        def send(message):
            messages.append(message)
            if isinstance(message, Leave):
                process.exit(1)

        process.send = send
        send_signal_to_driver(signal.SIGINT, times=2)(process)

    monkeypatch.setattr(driver, "is_attended", lambda: True)
    outcome = sweep("seed=1,2", behaviors={1: [leave_at_the_second_signal]})
    # No exit code of a saved sweep.
    assert (outcome.code, started_seeds()) == (1, [1])
    assert messages == [SignalReceived(signal.SIGINT), Leave()]
    assert "SIGINT: the running points save, then exit; again exits immediately." in outcome.out
    assert states() == {1: "stopped", 2: "waiting"}


def test_search_of_the_users_own_prunes_and_decides_by_the_study(monkeypatch):
    Path("my_search.py").write_text(
        "from trainer.sweep.search import GridSearch\n\n"
        "class Limited(GridSearch):\n"
        "    def __init__(self, context, *, limit: float = 1.0):\n"
        "        super().__init__(context)\n"
        "        self.limit = limit\n\n"
        "    def propose(self, study):\n"
        "        states = [str(trial.outcome.state) for trial in study.trials.values()]\n"
        "        return None if 'done' in states[1:] else super().propose(study)\n\n"
        "    def prunes(self, study, trial):\n"
        "        return list(trial.evaluations.values())[-1]['loss'] > self.limit\n"
    )
    Path("conf/search").mkdir(parents=True)
    Path("conf/search/limited.yaml").write_text("_target_: my_search.Limited\nlimit: 1.5\n")
    monkeypatch.syspath_prepend(os.getcwd())

    def report_high_loss(process):
        for step in (2, 4):
            process.emit(Evaluated(step, {"loss": 2.0}, ""))

    outcome = sweep(
        *("--config-dir=conf", "search=limited", "seed=1,2,3"), behaviors={1: [report_high_loss]}
    )
    assert (outcome.code, FakeProcess.started[0].signals) == (0, [signal.SIGTERM])
    assert states() == {1: "pruned", 2: "done", 3: "waiting"}


def test_command_ends_when_its_hours_are_over_and_the_same_one_continues():
    outcome = sweep("seed=1,2", "sweep.max_hours=1e-6", behaviors={1: [train_until_stopped]})
    assert (outcome.code, started_seeds()) == (0, [1])
    assert "sweep.max_hours (1e-06) is over" in outcome.out
    assert states() == {1: "stopped", 2: "waiting"}
    assert (sweep("seed=1,2").code, states()) == (0, {1: "done", 2: "done"})


@pytest.mark.parametrize("search", ["asha", "pbt"])
@pytest.mark.parametrize(
    "key", ["evaluate.every_epochs=null", "evaluate.sidecar=true", "writers=[tensorboard]"]
)
def test_search_whose_points_cannot_pause_is_refused(search, key):
    rate = "optimizer.learning_rate=interval(0.1,0.2)"
    outcome = sweep(f"search={search}", rate, key)
    assert (outcome.code, started_seeds()) == (2, [])
    assert f"search={search}" in outcome.err
    assert not Path("runs").exists()


def test_running_points_save_if_the_search_cannot_continue(monkeypatch):
    propose = GridSearch.propose

    def refuse(self, study):
        if any(trial.outcome for trial in study.trials.values()):
            raise ConfigError("sweep.metric (x) must be a metric of the evaluation")
        return propose(self, study)

    monkeypatch.setattr(GridSearch, "propose", refuse)
    outcome = sweep("sweep.jobs=2", "seed=1,2,3", behaviors={1: [train_until_stopped]})
    assert outcome.code == 2
    assert outcome.err == "error: sweep.metric (x) must be a metric of the evaluation\n"
    assert [(process.seed, process.signals) for process in FakeProcess.started] == [
        (1, [signal.SIGTERM]),
        (2, []),
    ]


def test_parallel_points_divide_cores_but_not_threads():
    assert divide(2, [0, 1, 4, 5], []) == [
        ResourceShare((0, 1), None, 4),
        ResourceShare((4, 5), None, 4),
    ]
    assert [share.cores for share in divide(3, [0, 1, 2, 3, 4], [])] == [(0,), (1, 2), (3, 4)]
    assert [share.cores for share in divide(5, [3, 7], [])] == [(3,), (7,), (3,), (7,), (3,)]
    assert divide(2, [], []) == [ResourceShare(), ResourceShare()]
    assert divide(1, [0, 1, 2], ["0"]) == [ResourceShare()]


def test_parallel_points_divide_gpus_and_do_not_share_one():
    gpus = [share.gpus for share in divide(2, [0, 1], ["0", "1", "GPU-ab"])]
    assert gpus == [("0",), ("1", "GPU-ab")]
    with pytest.raises(ConfigError, match=r"sweep.jobs \(2\) must be at.*number of GPUs \(1\)"):
        divide(2, [0, 1], ["0"])
