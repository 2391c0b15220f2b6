"""What the driver does with points, whose processes are played here; `test_sweeps.py` has real ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, run_here

from trainer.composition import Composer
from trainer.outcome import State
from trainer.signals import SAVE
from trainer.sweep import driver, grid, slots
from trainer.sweep.points import Point
from trainer.sweep.slots import Slot

Play = Callable[["Played"], None]
COMPOSER = Composer(None)  # what it has composed once need not be composed again


class Played:
    """Stands for the process of a point; what it does is told by its seed, once for each time it is started."""

    plays: dict[int, list[Play]]
    started: list[Played]

    def __init__(self, point: Point, slot: Slot, config_dir: str | None, messages: Any) -> None:
        self.point, self.slot, self.messages, self.requests = point, slot, messages, list[int]()
        self.seed = point.experiment.seed
        self.started.append(self)
        play = self.plays.get(self.seed, [])
        (play.pop(0) if play else done)(self)

    def tell(self, **message: Any) -> None:
        self.messages.put({**message, "from": self.point.number})

    def exit(self, code: int, text: str = "") -> None:
        self.tell(kind="exit", code=code, text=text)

    def request(self, number: int) -> None:
        self.requests.append(number)
        if number != SAVE:
            self.exit(128 + number if len(self.requests) == 1 else 1)

    def kill(self) -> None:
        raise AssertionError("it is asked to leave, not killed")


def done(played: Played) -> None:
    path, train = played.point.path, played.point.experiment.train
    path.mkdir(parents=True, exist_ok=True)
    result = {"step": train.steps, "metrics": {"loss": played.seed / 10}, "train": {"steps": train.steps, "epochs": train.epochs}}
    (path / "result.json").write_text(json.dumps(result))
    played.exit(0)


def crash(played: Played) -> None:
    played.tell(kind="error", text="first cause")
    played.tell(kind="error", text="a consequence")
    played.exit(1)


def wrong(played: Played) -> None:
    played.tell(kind="problem", lines=["no such file", "nor that"])
    played.exit(2)


def killed(played: Played) -> None:
    played.exit(-signal.SIGKILL)


def silent(played: Played) -> None:
    played.exit(1, "Traceback ...\nImportError: nothing there")


def hang(played: Played) -> None:
    """It trains until it is asked to leave."""


def signalled(number: int, times: int = 1) -> Play:
    def play(played: Played) -> None:
        for _ in range(times):
            os.kill(os.getpid(), number)

    return play


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "PointProcess", Played)
    monkeypatch.setattr(driver, "Composer", lambda config_dir: COMPOSER)
    monkeypatch.setattr(slots, "cores", lambda: [0, 1])
    Played.plays, Played.started = {}, []


def sweep(*overrides: str, plays: Mapping[int, list[Play]] | None = None) -> Outcome:
    Played.plays, Played.started = {seed: list(play) for seed, play in (plays or {}).items()}, []
    return run_here("-m", "model=softmax", "train.steps=2", "sweep.name=s", *overrides)


def started() -> list[int]:
    return [played.seed for played in Played.started]


def summary() -> dict[int, dict[str, Any]]:
    points = json.loads(Path("runs/sweeps/s/summary.json").read_text())["points"]
    return {int(point["varied"]["seed"]): point for point in points}


def states() -> dict[int, str]:
    return {seed: point["state"] for seed, point in sorted(summary().items())}


def test_every_point_is_run_once() -> None:
    outcome = sweep("seed=1,2,3")
    assert (outcome.code, outcome.err, started()) == (0, "", [1, 2, 3])
    assert states() == {1: "done", 2: "done", 3: "done"}
    assert outcome.out.endswith("Summary: runs/sweeps/s\n")
    assert {played.slot for played in Played.started} == {Slot()}


def test_what_is_finished_starts_no_process_and_what_was_added_does() -> None:
    sweep("seed=1,2")
    before = Path("runs/sweeps/s/summary.json").read_bytes()
    assert (sweep("seed=1,2").code, started()) == (0, [])
    assert Path("runs/sweeps/s/summary.json").read_bytes() == before
    assert (sweep("seed=1,3,2").code, started()) == (0, [3])


def test_starting_afresh_skips_nothing() -> None:
    sweep("seed=1,2")
    assert (sweep("seed=1,2", "resume=never").code, started()) == (0, [1, 2])


def test_the_others_go_on_after_a_failure() -> None:
    outcome = sweep("seed=1,2,3,4,5", plays={1: [crash], 2: [wrong], 3: [killed], 4: [silent]})
    assert (outcome.code, started()) == (1, [1, 2, 3, 4, 5])
    assert states() == {1: "failed", 2: "failed", 3: "failed", 4: "failed", 5: "done"}
    whys = [summary()[seed]["why"] for seed in range(1, 6)]
    assert whys == ["first cause", "no such file; nor that", "was killed by SIGKILL", "ImportError: nothing there", ""]
    assert [line.partition(" (")[0] for line in outcome.err.splitlines()] == [f"error: point {number} of 5" for number in range(1, 5)]


def test_what_failed_is_tried_again_by_the_next_command() -> None:
    sweep("seed=1,2", plays={1: [crash]})
    assert (sweep("seed=1,2").code, started(), states()) == (0, [1], {1: "done", 2: "done"})


def test_a_failure_can_stop_the_sweep() -> None:
    outcome = sweep("seed=1,2,3,4", "sweep.on_error=stop", "sweep.jobs=2", plays={1: [hang], 2: [crash]})
    assert (outcome.code, started()) == (1, [1, 2])
    assert Played.started[0].requests == [signal.SIGTERM]
    assert states() == {1: "stopped", 2: "failed", 3: "waiting", 4: "waiting"}


def test_a_failure_can_be_retried() -> None:
    outcome = sweep("seed=1,2,3", "sweep.on_error=retry", "sweep.retries=2", plays={1: [crash, crash], 2: [crash] * 3, 3: [wrong]})
    # What is wrong stays wrong.
    assert (outcome.code, sorted(started())) == (1, [1, 1, 1, 2, 2, 2, 3])
    assert states() == {1: "done", 2: "failed", 3: "failed"}
    assert "point 1 of 3 (seed=1): first cause; trying again (1 of 2)" in outcome.out


def test_points_train_beside_each_other_on_different_cores() -> None:
    # The first to be started ends when the last one has been.
    plays = {1: [hang], 3: [lambda played: (done(Played.started[0]), done(played))]}
    assert sweep("seed=1,2,3", "sweep.jobs=2", plays=plays).code == 0
    one, two, three = (played.slot for played in Played.started)
    assert {one, two} == {Slot((0,), None, 2), Slot((1,), None, 2)}
    assert three == two


def test_no_more_parts_are_made_than_there_are_points() -> None:
    sweep("seed=1", "sweep.jobs=2")
    assert Played.started[0].slot == Slot()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once(number: int) -> None:
    outcome = sweep("seed=1,2,3", "sweep.jobs=2", plays={1: [hang], 2: [signalled(number)]})
    assert (outcome.code, started()) == (128 + number, [1, 2])
    assert [played.requests for played in Played.started] == [[number], [number]]
    assert states() == {1: "stopped", 2: "stopped", 3: "waiting"}


def test_a_second_signal_leaves_at_once_and_no_exit_code_says_that_all_was_saved() -> None:
    def stubborn(played: Played) -> None:
        played.request = lambda number: (played.requests.append(number), played.exit(1) if len(played.requests) == 2 else None)
        signalled(signal.SIGTERM, 2)(played)

    outcome = sweep("seed=1,2", plays={1: [stubborn]})
    assert (outcome.code, started(), Played.started[0].requests) == (1, [1], [signal.SIGTERM] * 2)
    assert states() == {1: "stopped", 2: "waiting"}


def test_more_points_than_cores_are_told() -> None:
    assert "3 points at a time share 2 cores" in sweep("seed=1,2,3", "sweep.jobs=3").out.splitlines()


def test_a_process_that_does_not_write_the_result_is_believed() -> None:
    outcome = sweep("seed=1,2", plays={1: [lambda played: played.exit(0)]})
    assert (outcome.code, states()) == (0, {1: "done", 2: "done"})


def test_a_sweep_of_one_point_has_a_folder_too() -> None:
    assert sweep("sweep.name=null").out.rpartition("/")[2].startswith("single-")


def test_a_signal_that_comes_when_all_is_done_changes_nothing() -> None:
    assert sweep("seed=1", plays={1: [lambda played: (signalled(signal.SIGTERM)(played), done(played))]}).code == 0


def test_a_request_to_save_is_passed_on() -> None:
    def saves(played: Played) -> None:
        signalled(SAVE)(played)
        played.request = lambda number: (played.requests.append(number), done(played))

    assert sweep("seed=1", plays={1: [saves]}).code == 0
    assert Played.started[0].requests == [SAVE]


def test_a_point_that_somebody_stops_is_not_done() -> None:
    outcome = sweep("seed=1,2", plays={1: [lambda played: played.exit(143)]})
    assert (outcome.code, states()) == (1, {1: "stopped", 2: "done"})


def test_a_point_that_falls_behind_is_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, State]] = []

    class Pruning(grid.Grid):
        def report(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
            return metrics["loss"] > 1

        def tell(self, point: Point, outcome: Any) -> None:
            told.append((point.number, outcome.state))

    def behind(played: Played) -> None:
        for step in (2, 4):
            played.tell(kind="evaluated", step=step, metrics={"loss": 2.0}, text="")

    monkeypatch.setattr(grid, "Grid", Pruning)
    outcome = sweep("seed=1,2", plays={1: [behind]})
    assert (outcome.code, Played.started[0].requests) == (0, [signal.SIGTERM])
    assert told == [(1, State.PRUNED), (2, State.DONE)]
    assert states() == {1: "pruned", 2: "done"}


def test_a_stopped_point_is_told_nothing_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(grid.Grid, "tell", lambda self, point, outcome: told.append(point))
    sweep("seed=1,2", plays={1: [signalled(signal.SIGTERM)]})
    assert started() == [1]
    assert told == []


def test_one_point_at_a_time_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["127.0.0.1:0"]}, "task": {"type": "worker", "index": 0}}))
    outcome = sweep("seed=1,2", "sweep.jobs=2", "strategy=multi_worker")
    assert (outcome.code, started()) == (2, [])
    assert not list(Path().iterdir())
