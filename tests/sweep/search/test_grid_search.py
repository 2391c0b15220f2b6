"""Grid search: from a command line to checked points."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.cli.compose import Composer
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.runs.identity import run_name
from trainer.sweep.points.points import Point, point_composer
from trainer.sweep.search.grid_search import expand as expand_parsed

COMPOSER = Composer(None)  # shared by all tests: it caches what it has composed


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def expand(*overrides: str) -> tuple[list[Point], list[str]]:
    return expand_parsed(COMPOSER.parse(overrides), point_composer(COMPOSER))


def test_every_combination_is_a_point_with_its_own_directory() -> None:
    points, notes = expand(
        "model=softmax,cnn", "seed=range(1,3)", "train.steps=2", "train.epochs=null"
    )
    assert [point.label for point in points] == [
        "model=softmax seed=1",
        "model=softmax seed=2",
        "model=cnn seed=1",
        "model=cnn seed=2",
    ]
    assert [point.number for point in points] == [1, 2, 3, 4]
    last = points[3]
    assert last.overrides == ["model=cnn", "seed=2", "train.steps=2", "train.epochs=null"]
    assert (last.experiment.choices["model"], last.experiment.seed) == ("cnn", 2)
    assert [point.path for point in points] == [
        Path("runs") / run_name(point.experiment) for point in points
    ]
    assert len({point.path for point in points}) == 4
    assert notes == []
    assert not list(Path().iterdir())


def test_combinations_with_the_same_run_are_one_point() -> None:
    points, notes = expand(
        "model=softmax", "optimizer.learning_rate=0.1,1e-1,0.10,0.2", "checkpoint.every_steps=4,8"
    )
    assert [point.varied["optimizer.learning_rate"] for point in points] == ["0.1", "0.2"]
    assert [point.number for point in points] == [1, 2]
    key = "optimizer.learning_rate=0.1 checkpoint.every_steps"
    assert notes[:2] == [
        f"{key}=8 is the same run as {key}=4; it is trained once",
        f"{key}=4 appears twice; it is trained once",
    ]


def test_quoted_values_are_single_values_and_a_glob_selects_choices() -> None:
    (point,), _ = expand("model=softmax", "name='a'", "writers=[jsonl]")
    assert (point.varied, point.label) == ({}, point.path.name)
    assert (point.experiment.name, list(point.experiment.writers)) == ("a", ["jsonl"])
    points, _ = expand("optimizer=glob(adam*)")
    assert [point.experiment.choices["optimizer"] for point in points] == ["adam", "adamw"]


def test_many_wrong_points_are_not_all_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[int] = []
    compose = COMPOSER.compose

    def counted(overrides: list[str]) -> Experiment:
        composed.append(1)
        return compose(overrides)

    monkeypatch.setattr(COMPOSER, "compose", counted)
    with pytest.raises(ConfigError) as raised:
        expand("seed=0,1", "train.steps=range(-500,0)")
    assert len(composed) == 20
    *problems, last = raised.value.problems
    assert last == "these are the problems of 20 points; there may be more"
    assert len(problems) == 20


def test_resume_of_one_run_is_refused_for_several_points(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    message = r"resume \(run\) is one run, and there are several points"
    with pytest.raises(ConfigError, match=message):
        expand("resume=run", "seed=1,2")
    assert len(expand("resume=run", "seed=1")[0]) == 1
