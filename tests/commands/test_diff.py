"""`python train.py diff <run> <run>`: in which keys two runs differ."""

import pytest

from tests.command_line import run_apart, run_here
from trainer import main, provenance
from trainer.cli import compose
from trainer.identity import Change
from trainer.rundir import open_run


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes a run of some overrides and gives its path."""
    monkeypatch.chdir(tmp_path)

    def open_and_leave(*overrides):
        run = open_run(compose(list(overrides)), [], None)
        run.release()
        return str(run.path)

    return open_and_leave


def test_what_differs_is_aligned(make):
    a, b = make("name=a"), make("name=b", "optimizer.learning_rate=0.5", "train.epochs=null", "train.steps=20", "jit=true")
    done = run_here("diff", a, b)
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines() == [
        f"key                      {a}  {b}",
        "name                     'a'              'b'",
        "jit                      false            true",
        "train.steps              null             20",
        "train.epochs             30               null",
        "optimizer.learning_rate  0.001            0.5",
    ]


def test_another_choice_shows_its_keys(make):
    keys = [line.split()[0] for line in run_here("diff", make(), make("model=softmax")).out.splitlines()]
    assert "model._target_" in keys
    assert "choices.model" not in keys


def test_what_concerns_one_command_alone_is_no_difference(make):
    path = make("seed=3", "sweep.jobs=2")
    same = make("seed=3", "resume=never")
    assert same == path
    done = run_here("diff", path, f"{path}.old-1")
    assert (done.code, done.out, done.err) == (0, f"{path} and {path}.old-1 have the same configuration.\n", "")


def test_what_later_commands_have_changed_counts(make, tmp_path):
    a, b = make("name=a"), make("name=b")
    provenance.add_entry(tmp_path / a, [], None, None, [Change("checkpoint.keep", 2, 7)])
    assert run_here("diff", a, b).out.splitlines()[2].split() == ["checkpoint.keep", "7", "2"]


USAGE = "usage: diff [-h] run run"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], f"the following arguments are required: run; {USAGE}"),
        (["{a}"], f"the following arguments are required: run; {USAGE}"),
        (["{a}", "{a}", "x"], f"unrecognized arguments: x; {USAGE}"),
        (["{a}", "{a}x"], "diff ({a}x): no run there: it has no config.yaml; did you mean '{a}'?"),
        (["zzz", "{a}"], "diff (zzz): no run there: it has no config.yaml; give the path of a run directory"),
    ],
)
def test_a_wrong_command_is_one_line(make, arguments, problem):
    path = make()
    done = run_here("diff", *(argument.format(a=path) for argument in arguments))
    assert (done.code, done.out, done.err) == (2, "", f"error: {problem.format(a=path)}\n")


def test_it_needs_no_worker_and_no_tensorflow(make, tmp_path):
    path = str(tmp_path / make())
    assert not main._will_train(["diff", path, path])
    assert run_apart("diff", path, path, cwd=tmp_path / "runs").code == 0
