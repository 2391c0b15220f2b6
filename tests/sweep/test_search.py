"""Points and searches: from a command line to checked points, sampled or every combination."""

from pathlib import Path
from random import Random

import pytest

from tests.sweep.simulated_search import MODEL_CHOICE, RATE_RANGE, World, parse, table
from trainer.cli.compose import parse_sweep
from trainer.runs.identity import run_name
from trainer.sweep.points import compose_point, expand
from trainer.sweep.space import Choice, NumberRange, parse_search_space

METHODS = pytest.mark.parametrize("method", ["random", "optuna"])


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def grid(*overrides):
    return expand(parse_sweep(overrides, None), compose_point)


def test_every_combination_is_a_point_with_its_own_directory():
    rest = ["train.steps=2", "train.epochs=null"]
    points, notes = grid("model=softmax,cnn", "seed=range(1,3)", *rest)
    assert [(point.number, point.label) for point in points] == [
        (1, "model=softmax seed=1"),
        (2, "model=softmax seed=2"),
        (3, "model=cnn seed=1"),
        (4, "model=cnn seed=2"),
    ]
    last = points[3]
    assert last.overrides == ["model=cnn", "seed=2", *rest]
    assert (last.experiment.choices["model"], last.experiment.seed) == ("cnn", 2)
    assert [point.path for point in points] == [
        Path("runs") / run_name(point.experiment) for point in points
    ]
    assert len({point.path for point in points}) == 4
    assert notes == []
    assert not list(Path().iterdir())


def test_combinations_with_the_same_run_are_one_point():
    points, notes = grid(
        "model=softmax", "optimizer.learning_rate=0.1,1e-1,0.10,0.2", "checkpoint.every_steps=4,8"
    )
    assert [point.varied["optimizer.learning_rate"] for point in points] == ["0.1", "0.2"]
    assert [point.number for point in points] == [1, 2]
    key = "optimizer.learning_rate=0.1 checkpoint.every_steps"
    assert notes[:2] == [
        f"{key}=8 is the same run as {key}=4; it is trained once",
        f"{key}=4 appears twice; it is trained once",
    ]


def test_quoted_values_are_single_values_and_a_glob_selects_choices():
    (point,), _ = grid("model=softmax", "name='a'", "writers=[jsonl]")
    assert (point.varied, point.label) == ({}, point.path.name)
    assert (point.experiment.name, list(point.experiment.writers)) == ("a", ["jsonl"])
    points, _ = grid("optimizer=glob(adam*)")
    assert [point.experiment.choices["optimizer"] for point in points] == ["adam", "adamw"]


@pytest.mark.parametrize(
    ("text", "values", "values_to_check"),
    [
        ("choice(1,2,2)", Choice(("1", "2")), ("1", "2")),
        ('choice("x y",b)', Choice((r"x\ y", "b")), (r"x\ y", "b")),
        ("int(interval(16,128))", NumberRange(16, 128, 1), ("16", "17", "128")),
        ("tag(log,interval(1e-4,1e-1))", NumberRange(0.0001, 0.1, log=True), ("0.0001", "0.1")),
        ("tag(log,int(interval(1,64)))", NumberRange(1, 64, 1, log=True), ("1", "2", "64")),
        ("range(16,129,16)", NumberRange(16, 128, 16), ("16", "32", "128")),
        ("range(9,0,-3)", NumberRange(3, 9, 3), ("3", "6", "9")),
        ("range(0.0,0.5,0.25)", Choice(("0.0", "0.25")), ("0.0", "0.25")),
    ],
)
def test_ranges_follow_hydras_sweep_syntax(text, values, values_to_check):
    space = parse_search_space(parse("seed=1", f"key={text}"))
    assert space.fixed == ["seed=1"]
    assert space.ranges == {"key": values}
    assert values.values_to_check == values_to_check
    # The study stores a range as text.
    assert parse_search_space(parse(f"key={values}")).ranges == {"key": values}


@pytest.mark.parametrize(
    "values",
    [
        NumberRange(0.0001, 0.1, log=True),
        NumberRange(-3.0, 1234.5),
        NumberRange(1, 64, 1, log=True),
        NumberRange(16, 128, 16),
    ],
)
def test_sampled_numbers_are_short_and_within_the_bounds(values):
    random = Random(0)
    samples = [values.sample(random) for _ in range(300)]
    for text in samples:
        assert len(text.partition("e")[0].lstrip("-0.").replace(".", "")) <= 6
        assert values.low <= float(text) <= values.high
        assert values.format(float(text)) == text
        assert not values.step or (int(text) - values.low) % values.step == 0
    assert len(set(samples)) == values.size or len(set(samples)) > 50


@METHODS
def test_repeated_and_extended_search_has_the_same_points(tmp_path, method):
    def points(folder, count, **settings):
        settings = {"method": method, "max_points": count, **settings}
        return table(World(tmp_path / folder).sweep(RATE_RANGE, MODEL_CHOICE, **settings))

    eight = points("a", 8)
    assert len({label for label, *_ in eight.values()}) == 8
    six = points("b", 6)
    assert list(six.items()) == list(eight.items())[:6]
    assert points("b", 8) == eight
    assert points("c", 1, seed=1)[1] != eight[1]


@METHODS
def test_finite_search_space_is_exhausted_without_duplicates(tmp_path, method):
    rates = "optimizer.learning_rate=0.1,0.10,0.01"
    command = World(tmp_path).sweep(MODEL_CHOICE, rates, method=method, max_points=20)
    assert len({result.point.path for result in command.results.values()}) == 4
    assert len(command.results) == 4
