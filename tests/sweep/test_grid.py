"""From a command line to points."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.composition import Composer
from trainer.errors import ConfigError
from trainer.identity import run_name
from trainer.sweep import grid

COMPOSER = Composer(None)  # what it has composed once need not be composed again


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def expand(*overrides: str) -> tuple[list[grid.Point], list[str]]:
    return grid.expand(COMPOSER.parse(overrides), COMPOSER)


def test_every_combination_is_a_point_in_its_own_directory() -> None:
    points, lines = expand("model=softmax,cnn", "seed=range(1,3)", "train.steps=2", "train.epochs=null")
    assert [point.label for point in points] == ["model=softmax seed=1", "model=softmax seed=2", "model=cnn seed=1", "model=cnn seed=2"]
    assert [point.number for point in points] == [1, 2, 3, 4]
    assert points[3].overrides == ["model=cnn", "seed=2", "train.steps=2", "train.epochs=null"]
    assert (points[3].experiment.choices["model"], points[3].experiment.seed) == ("cnn", 2)
    assert [point.path for point in points] == [Path("runs") / run_name(point.experiment) for point in points]
    assert len({point.path for point in points}) == 4
    assert lines == []
    assert not list(Path().iterdir())


def test_two_points_of_one_run_are_one() -> None:
    points, lines = expand("model=softmax", "optimizer.learning_rate=0.1,1e-1,0.10,0.2", "checkpoint.every_steps=4,8")
    assert [point.varied["optimizer.learning_rate"] for point in points] == ["0.1", "0.2"]
    assert [point.number for point in points] == [1, 2]
    lr = "optimizer.learning_rate=0.1 checkpoint.every_steps"
    assert lines[:2] == [f"{lr}=8 is the same run as {lr}=4; it is trained once", f"{lr}=4 is there twice; it is trained once"]


def test_a_value_may_be_quoted_and_a_list() -> None:
    (point,), _ = expand("model=softmax", "name='a'", "summary.writers=[jsonl]")
    assert (point.varied, point.label) == ({}, point.path.name)
    assert (point.experiment.name, point.experiment.summary.writers) == ("a", ["jsonl"])


def test_a_glob_names_choices() -> None:
    points, _ = expand("optimizer=glob(adam*)")
    assert [point.experiment.choices["optimizer"] for point in points] == ["adam", "adamw"]


def test_the_mistakes_of_all_points_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        expand("model=softmax", "train.steps=0,2,-1", "train.epochs=null")
    assert [problem.split(" must")[0] for problem in raised.value.problems if "steps" in problem] == ["train.steps (0)", "train.steps (-1)"]


def test_what_cannot_work_together_is_told_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"batch.global_size \(15\)"):
        expand("batch.global_size=16,15", "strategy=mirrored", "strategy.virtual_devices=2")


def test_one_run_is_not_several(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    with pytest.raises(ConfigError, match=r"resume \(run\) is one run, and there are several points"):
        expand("resume=run", "seed=1,2")
    assert len(expand("resume=run", "seed=1")[0]) == 1
