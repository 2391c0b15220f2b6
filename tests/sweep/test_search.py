"""search=random and search=optuna: what is drawn, what is stored, what is refused. The engine is a function here."""

import copy
import gc
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from sqlalchemy import event
from sqlalchemy.engine import Engine

from trainer.cli import compose as compose_for_real
from trainer.errors import ConfigError, StorageError
from trainer.outcome import Outcome, State
from trainer.sweep.search import propose
from trainer.sweep.space import Choice, Interval, space_of

optuna = pytest.importorskip("optuna")


@event.listens_for(Engine, "connect")
def no_waiting_for_the_disk(connection, record):
    """What is killed here is a process, not the machine."""
    connection.execute("PRAGMA synchronous=OFF")


RATES, SIZES, MODELS = (
    "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))",
    "batch.global_size=int(interval(16,128))",
    "model=cnn,softmax",
)
STEPS = (10, 20, 30)
BASE = compose_for_real([])


def parse(*overrides):
    return OverridesParser.create().parse_overrides(list(overrides))


def compose(overrides):
    """Composes what these tests vary, without Hydra, which takes its time."""
    experiment = copy.deepcopy(BASE)
    for key, value in (item.split("=", 1) for item in overrides):
        if key == "model":
            experiment.choices |= {"model": value}
        elif key == "batch.global_size":
            experiment.batch.global_size = int(value)
        elif key == "optimizer.learning_rate":
            if float(value) <= 0:
                raise ConfigError(f"optimizer.learning_rate ({value}) must be > 0")
            experiment.optimizer |= {"learning_rate": float(value)}
        else:
            section, name = key.split(".")
            setattr(getattr(experiment, section), name, type(getattr(getattr(experiment, section), name))(value))
    return experiment


def search(folder, *overrides, method="optuna", trials=10, **settings):
    gc.collect()  # one search at a time is at a folder: the one before is gone
    base = copy.deepcopy(BASE)
    base.search.method, base.search.trials = method, trials
    for key, value in settings.items():
        setattr(base.sweep if hasattr(base.sweep, key) else base.search, key, value)
    return propose(parse(*(overrides or (RATES, MODELS))), base, compose, folder)


def train(point, proposals=None, steps=STEPS):
    """The experiment: learns best with a rate of 0.01, and with the cnn."""
    rate = point.experiment.optimizer["learning_rate"]
    best = 1 - abs(math.log10(rate) + 2) / 4 - 0.1 * (point.experiment.choices["model"] != "cnn")
    for step in steps:
        metrics = {"accuracy": best * step / steps[-1], "loss": 1 - best * step / steps[-1]}
        if proposals and proposals.report(point, step, metrics):
            return Outcome(State.PRUNED, step, metrics)
    return Outcome(State.DONE, steps[-1], metrics)


def drive(proposals, limit=1000, outcome=train):
    """Runs a search to its end, or until so many points are done; gives label and state of each."""
    told = []
    while len(told) < limit and (point := proposals.next()):
        came_to = point.pruned or outcome(point, proposals)
        proposals.tell(point, came_to)
        told.append((point.label, came_to.state.value))
    return told


def trials(folder):
    return optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / 'study.db'}").get_trials()


@pytest.mark.parametrize(
    ("text", "meant", "edges"),
    [
        ("a,b", Choice(("a", "b")), ("a", "b")),
        ("choice(1,2,2)", Choice(("1", "2")), ("1", "2")),
        ('choice("x y",b)', Choice((r"x\ y", "b")), (r"x\ y", "b")),
        ("interval(1,5)", Interval(1.0, 5.0), ("1.0", "5.0")),
        ("int(interval(16,128))", Interval(16, 128, 1), ("16", "17", "128")),
        ("int(interval(3,4))", Interval(3, 4, 1), ("3", "4")),
        ("tag(log,interval(1e-4,1e-1))", Interval(0.0001, 0.1, None, log=True), ("0.0001", "0.1")),
        ("tag(log,int(interval(1,64)))", Interval(1, 64, 1, log=True), ("1", "2", "64")),
        ("int(tag(log, interval(1, 64)))", Interval(1, 64, 1, log=True), ("1", "2", "64")),
        ("range(16,129,16)", Interval(16, 128, 16), ("16", "32", "128")),
        ("range(9,0,-3)", Interval(3, 9, 3), ("3", "6", "9")),
        ("range(0.0,0.5,0.25)", Choice(("0.0", "0.25")), ("0.0", "0.25")),
    ],
)
def test_ranges_mean_what_hydra_says(text, meant, edges):
    space = space_of(parse("seed=1", f"key={text}"))
    assert space.fixed == ["seed=1"]
    assert space.ranges == {"key": meant}
    assert meant.edges == edges
    assert space_of(parse(f"key={meant}")).ranges == {"key": meant}  # as the study writes it


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("interval(5,1)", "key (interval(5,1)) must have finite bounds, the smaller first; write interval(low,high)"),
        ("interval(0,inf)", "key (interval(0,inf)) must have finite bounds, the smaller first; write interval(low,high)"),
        (
            "tag(log,interval(0,1))",
            "key (tag(log,interval(0,1))) must be > 0 throughout to be drawn log; raise its lower bound",
        ),
        (
            "tag(lgo,interval(1,2))",
            "key (tag(lgo,interval(1,2))) must be tagged log, or not at all, got lgo; write tag(log,interval(1e-4,1e-1))",
        ),
        (
            "tag(log,range(1,9))",
            "key (tag(log,range(1,9))) must be an interval to be drawn log; write tag(log,int(interval(1,100)))",
        ),
        ("range(3,3)", "key=range(3,3) matches nothing; list values"),
    ],
)
def test_ranges_that_hold_nothing_are_refused(text, problem):
    with pytest.raises(ConfigError) as caught:
        space_of(parse("a=interval(2,1)", f"key={text}"))
    assert caught.value.problems[1:] == (problem,)


@pytest.mark.parametrize(
    "values",
    [
        Interval(0.0001, 0.1, None, log=True),
        Interval(0.9, 0.999),
        Interval(-3.0, 1234.5),
        Interval(1, 64, 1, log=True),
        Interval(16, 128, 16),
    ],
)
def test_what_is_drawn_is_short_exact_and_within_the_bounds(values):
    random = Random(0)
    drawn = [values.draw(random) for _ in range(300)]
    for text in drawn:
        assert len(text.partition("e")[0].lstrip("-0.").replace(".", "")) <= 6
        assert values.low <= float(text) <= values.high
        assert values.text(float(text)) == text
        assert not values.step or (int(text) - values.low) % values.step == 0
    assert len(set(drawn)) == values.size or len(set(drawn)) > 50


def test_orders_of_magnitude_are_alike_where_the_range_is_log():
    drawn = [float(Interval(0.0001, 1.0, None, log=True).draw(random)) for random in [Random(1)] for _ in range(1000)]
    for power in range(-4, 0):
        assert 200 < sum(10**power <= value < 10 ** (power + 1) for value in drawn) < 300
    whole = [Interval(1, 3, 1).draw(random) for random in [Random(1)] for _ in range(900)]
    assert all(240 < whole.count(value) < 360 for value in "123")


@pytest.mark.parametrize("method", ["random", "optuna"])
class TestBoth:
    def test_one_wrong_edge_is_told_before_anything_is_written(self, tmp_path, method):
        with pytest.raises(ConfigError) as caught:
            search(tmp_path / "s", "optimizer.learning_rate=interval(-1,0)", method=method)
        assert caught.value.problems == ("optimizer.learning_rate (-1.0) must be > 0", "optimizer.learning_rate (0.0) must be > 0")
        assert not (tmp_path / "s").exists()

    def test_something_must_be_varied(self, tmp_path, method):
        with pytest.raises(ConfigError, match="search needs something to vary; write"):
            search(tmp_path, "seed=1", method=method)

    def test_what_makes_no_other_run_is_not_searched(self, tmp_path, method):
        with pytest.raises(ConfigError, match=r"checkpoint.keep \(choice\(1,2\)\) changes nothing that is trained"):
            search(tmp_path, "checkpoint.keep=1,2", RATES, method=method)

    def test_a_run_that_is_resumed_is_one(self, tmp_path, method):
        base = copy.deepcopy(BASE)
        base.search.method, base.resume = method, "runs/x"
        with pytest.raises(ConfigError, match=r"resume \(runs/x\) is one run, and a search has many"):
            propose(parse(RATES), base, compose, tmp_path)

    def test_points_are_the_same_each_time_and_more_are_added(self, tmp_path, method):
        straight = drive(search(tmp_path / "a", method=method, trials=12))
        assert len({label for label, _ in straight}) == len(straight) == 12
        drive(search(tmp_path / "b", method=method, trials=8), limit=5)
        assert drive(search(tmp_path / "b", method=method, trials=8)) == straight[:8]
        assert drive(search(tmp_path / "b", method=method, trials=12)) == straight
        assert drive(search(tmp_path / "c", method=method, trials=3, seed=1)) != straight[:3]

    def test_a_finite_space_is_used_up_each_point_once(self, tmp_path, method):
        proposals = search(tmp_path, MODELS, "optimizer.learning_rate=0.1,0.10,0.01", method=method, trials=20)
        points = []
        while point := proposals.next():
            points.append(point)
            proposals.tell(point, train(point))
        assert len({point.path for point in points}) == len(points) == proposals.total == 4

    def test_overrides_are_those_of_a_command_of_its_own(self, tmp_path, method):
        point = search(tmp_path, "checkpoint.keep=3", RATES, "train.epochs=2", MODELS, method=method, trials=1).next()
        assert point.overrides == ["checkpoint.keep=3", "train.epochs=2", *point.label.split()]
        assert point.experiment == compose(point.overrides)


def test_study_tells_what_was_trained(tmp_path):
    proposals = search(tmp_path, RATES, SIZES, MODELS, trials=12)
    drive(proposals)
    del proposals
    found = trials(tmp_path)
    assert [trial.user_attrs["point"] for trial in found] == list(range(1, 13))
    again = search(tmp_path, RATES, SIZES, MODELS, trials=12)
    for trial in found:
        point = again.next()
        assert {key: str(value) for key, value in trial.params.items()} == point.varied
        assert trial.user_attrs["run"] == str(point.path)


def test_search_beats_chance(tmp_path):
    def best(labels):
        return min(abs(math.log10(float(label.split("=")[1])) + 2) for label, _ in labels)

    ranges = ("optimizer.learning_rate=tag(log,interval(1e-7,1e2))",)
    learned = [best(drive(search(tmp_path / str(seed), *ranges, trials=25, seed=seed, prune=False))) for seed in range(2)]
    chance = [best(drive(search(tmp_path, *ranges, method="random", trials=25, seed=seed))) for seed in range(2)]
    assert sum(learned) < sum(chance)


def test_points_that_stay_behind_are_pruned_alike_with_other_batches(tmp_path):
    def outcome(point, proposals):
        return train(point, proposals, steps=STEPS if point.number % 2 else (7, 14, 21))

    states = [state for _, state in drive(search(tmp_path / "a", trials=16), outcome=outcome)]
    assert set(states[:5]) == {"done"}
    assert "pruned" in states[5::2]
    assert "pruned" in states[6::2]
    assert [trial.state.name for trial in trials(tmp_path / "a")] == [{"done": "COMPLETE"}.get(state, "PRUNED") for state in states]
    assert {state for _, state in drive(search(tmp_path / "b", trials=16, prune=False), outcome=outcome)} == {"done"}


def test_a_pruned_point_is_not_trained_again(tmp_path):
    proposals = search(tmp_path, trials=10)
    told = []
    while point := proposals.next():
        told.append(train(point, proposals))
        proposals.tell(point, told[-1])
    del proposals
    again = search(tmp_path, trials=10)
    assert [again.next().pruned for _ in told] == [outcome if outcome.state is State.PRUNED else None for outcome in told]
    assert State.PRUNED in {outcome.state for outcome in told}


def test_what_a_killed_command_has_not_told_is_read_from_the_runs(tmp_path, monkeypatch):
    def written(point, proposals):
        """The run goes on for a moment, but nobody hears of it."""
        if point.number < 7:
            return train(point, proposals)
        point.path.mkdir(parents=True)
        lines = [{"step": step, "split": "test", "epoch": 1, "accuracy": 0.001 * step, "loss": 1.0} for step in STEPS]
        (point.path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 4')
        return Outcome(State.STOPPED)

    monkeypatch.chdir(tmp_path)
    drive(search(tmp_path, trials=7, prune=False), outcome=written)
    again = search(tmp_path, trials=7)
    assert [again.next().pruned for _ in range(7)] == [None] * 6 + [Outcome(State.PRUNED, 20, {"accuracy": 0.02, "loss": 1.0})]
    assert trials(tmp_path)[-1].intermediate_values == {1: 0.01, 2: 0.02}


def test_failed_points_are_tried_again_by_the_next_command(tmp_path):
    def failing(point, proposals):
        return Outcome(State.FAILED, why="no memory") if point.number in (2, 4) else train(point, proposals)

    first = drive(search(tmp_path, trials=6), outcome=failing)
    assert [state for _, state in first].count("failed") == 2
    assert [trial.state.name for trial in trials(tmp_path)].count("FAIL") == 2
    second = drive(search(tmp_path, trials=6))
    assert [label for label, _ in second] == [label for label, _ in first]
    assert "failed" not in dict(second).values()
    assert [trial.user_attrs["point"] for trial in trials(tmp_path)] == [1, 2, 3, 4, 5, 6, 2, 4]


def test_stopped_points_and_points_at_a_time_are_proposed_again(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.sweep.optuna_search._LOCK_WAIT_SECS", 0)
    proposals = search(tmp_path, trials=6)
    three = [proposals.next() for _ in range(3)]
    proposals.tell(three[1], train(three[1], proposals))
    with pytest.raises(ConfigError, match="is searched by another command; wait for it, or stop it"):
        search(tmp_path, trials=6)
    del proposals
    again = search(tmp_path, trials=6)
    assert [again.next().label for _ in range(3)] == [point.label for point in three]
    del again
    assert [trial.state.name for trial in trials(tmp_path)] == ["RUNNING", "COMPLETE", "RUNNING"]
    assert len(drive(search(tmp_path, trials=6))) == 6
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE"] * 6


def test_a_diverged_metric_is_a_failed_trial(tmp_path):
    proposals = search(tmp_path, trials=1)
    proposals.tell(proposals.next(), Outcome(State.DONE, 30, {"accuracy": math.nan}))
    assert [trial.state.name for trial in trials(tmp_path)] == ["FAIL"]


def test_loss_is_to_become_smaller(tmp_path):
    rates = [label for label, _ in drive(search(tmp_path, trials=3, metric="loss"))]
    assert len(rates) == 3
    study = optuna.load_study(study_name=tmp_path.name, storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert study.direction.name == "MINIMIZE"


def test_an_unknown_metric_is_told_with_those_there_are(tmp_path):
    proposals = search(tmp_path, metric="acuracy")
    with pytest.raises(ConfigError) as caught:
        proposals.report(proposals.next(), 10, {"loss": 1.0, "accuracy": 0.5})
    assert caught.value.problems == (
        "sweep.metric (acuracy) must be a metric of the test split, which has loss, accuracy; add sweep.metric=<one of them>",
    )


def test_a_study_that_has_learned_nothing_may_change(tmp_path):
    search(tmp_path, metric="acuracy").next()
    assert len(drive(search(tmp_path, metric="loss", trials=2))) == 2
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE"] * 2


def test_another_search_in_the_same_place_is_refused(tmp_path):
    folder = tmp_path / "mine"
    drive(search(folder, trials=2))
    with pytest.raises(ConfigError) as caught:
        search(folder, "optimizer.learning_rate=interval(0.1,0.2)", MODELS, metric="loss")
    assert caught.value.problems == (
        f"{folder / 'study.db'} holds a search that differs in goal: maximize accuracy -> minimize loss; "
        "optimizer.learning_rate: tag(log,interval(0.0001,0.1)) -> interval(0.1,0.2)",
        "go on with the command as it was, or start another search with sweep.name=<name>",
    )


def test_a_damaged_study_is_told_in_one_line(tmp_path):
    (tmp_path / "study.db").write_text("no database, however long this text may be" * 100)
    with pytest.raises(StorageError, match=r"study.db could not be written: .*file is not a database$"):
        search(tmp_path)


def test_optuna_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.sweep.search.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        search(tmp_path)
    assert caught.value.problems == ("search (optuna) needs the package optuna; install it with: pip install 'steadfast[optuna]'",)
    assert len(drive(search(tmp_path, method="random", trials=3))) == 3


KILLED = """
import json, os, signal, sys
from pathlib import Path
from tests.sweep.test_search import drive, search, train
proposals, calls = search(Path(sys.argv[1]), trials=12), 0
from sqlalchemy.orm import Session
commit = Session.commit
def count(self):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self)
Session.commit = count
print(json.dumps(drive(proposals)))
"""


@pytest.mark.slow
def test_a_study_that_was_killed_at_any_commit_goes_on_as_if_it_had_not_been(tmp_path):
    straight = drive(search(tmp_path / "straight", trials=12))
    killed, random = 0, Random(0)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    while True:
        args = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(random.randint(1, 60) if killed < 3 else 0)]
        done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed += 1
    assert killed == 3
    assert [tuple(item) for item in json.loads(done.stdout)] == straight
    points = [trial for trial in trials(tmp_path / "killed") if "point" in trial.user_attrs]
    assert [trial.user_attrs["point"] for trial in points] == list(range(1, 13))
    assert {trial.state.name for trial in points} <= {"COMPLETE", "PRUNED"}
