"""A run in emulated pods: a name that resolves late, a lost pod, a stop; the bits stay the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import run_here
from tests.support.pods import Pod, Pods, pods_of
from tests.support.processes import OPTIONS, final_variables, log, only_run, run
from tests.support.training import assert_same_bits

WAIT_SECS = 240

TRAINING = [
    *OPTIONS, "train.steps=12", "checkpoint.every_steps=2", "strategy=multi_worker",
    "strategy.communication=ring",
]  # fmt: skip

INCIDENT = '''
import json, os, pathlib, threading

from trainer.cluster.signals import Signals

requested, request = threading.Event(), Signals.request


def noticed(self, number):
    request(self, number)
    requested.set()


Signals.request = noticed


class Incident:
    """Waits, once in the run, for what happens to the pod of a worker at a step."""

    def __init__(self, *, at: int, index: int, folder: str) -> None:
        self.at = at
        self.is_mine = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == index
        self.file = pathlib.Path(folder) / f"reached-{at}"

    def on_evaluate(self, step, metrics):
        if self.is_mine and step == self.at and not self.file.exists():
            self.file.touch()
            assert requested.wait(240), "nothing has happened"
        return False
'''


def wait_for(condition: Callable[[], bool], what: str, *pods: Pod) -> None:
    until = time.monotonic() + WAIT_SECS
    while not condition():
        outputs = "\n".join(pod.output() for pod in pods)
        assert time.monotonic() < until, f"{what}: not after {WAIT_SECS} s\n{outputs}"
        assert all(pod.process.poll() is None for pod in pods), f"{what}: ended\n{outputs}"
        time.sleep(0.1)


def phases(shared: Path) -> dict[str, str]:
    """Return the phase of each process, as the commands in the pods tell it."""
    records = [json.loads(path.read_text()) for path in shared.glob("runs/*/logs/status-*.json")]
    return {
        process["name"]: process["phase"] for record in records for process in record["processes"]
    }


def printed(shared: Path) -> list[dict]:
    incidents = [
        f"+callbacks.{name}={{_target_:incident.Incident,at:{at},index:{index},folder:'{shared}'}}"
        for name, at, index in (("lost", 4, 1), ("stopped", 8, 0))
    ]
    outcome = run_here(
        "kubernetes", *TRAINING, "--workers", "2", "--image", "a", "--name", "train",
        f"runs_dir={shared / 'runs'}", *incidents,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    return list(yaml.safe_load_all(outcome.out))


@pytest.mark.slow
def test_pods_that_are_lost_and_stopped_train_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "incident.py").write_text(INCIDENT)
    monkeypatch.chdir(tmp_path / "project")
    image = {"incident.py": INCIDENT}
    with pods_of(tmp_path / "pods", printed(shared)) as pods:
        _train(pods, shared, image)
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    code, out, err = run(undisturbed, *TRAINING, "strategy.workers=2")
    assert code == 0, out + err
    assert_same_bits(final_variables(only_run(shared)), final_variables(only_run(undisturbed)))
    assert log(only_run(shared)) == log(only_run(undisturbed))


def _train(pods: Pods, shared: Path, image: dict[str, str]) -> None:
    first, second = (pods.start(index, image) for index in (0, 1))
    # Neither can resolve the other's name.
    both_wait = {"worker-0": "join", "worker-1": "join"}
    wait_for(lambda: phases(shared) == both_wait, "waiting for the DNS", first, second)
    shown = run_here("status", str(only_run(shared))).out.splitlines()
    assert [line.split()[:3] for line in shown[1:3]] == [
        ["worker-0", "train-0", "join"],
        ["worker-1", "train-1", "join"],
    ]
    pods.resolve()
    wait_for((shared / "reached-4").exists, "step 4", first, second)
    second.kill()
    second = pods.start(1, image)
    wait_for((shared / "reached-8").exists, "step 8", first, second)
    first.terminate()
    assert [first.wait(), second.wait()] == [143, 143], first.output() + second.output()
    last = [pods.start(index, image) for index in (0, 1)]
    assert [pod.wait() for pod in last] == [0, 0], "".join(pod.output() for pod in last)
