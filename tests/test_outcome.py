"""What has become of a run, read from its directory alone; and failure.json, which a crash leaves there."""

import fcntl
import json
import subprocess
import sys
import traceback

import pytest

from tests.processes import OPTIONS, only_run, run
from trainer import markers, provenance
from trainer.cli import compose
from trainer.errors import NonFiniteError
from trainer.identity import Change
from trainer.outcome import Outcome, State, forget_failure, outcome_of, record_failure
from trainer.rundir import open_run
from trainer.worker import cause_of

METRICS = {"loss": 0.5, "accuracy": 0.75}


@pytest.fixture
def path(tmp_path):
    """A run that nobody holds and that has nothing yet."""
    run = open_run(compose([f"runs_dir={tmp_path}", "train.epochs=null", "train.steps=20"]), [], None)
    run.release()
    (run.path / "checkpoints").mkdir()
    return run.path


def finish(path, **train):
    content = {"step": 20, "metrics": METRICS, "train": {"steps": 20, "epochs": None, **train}}
    (path / "result.json").write_text(json.dumps(content))


def write(path, *lines, name="metrics.jsonl"):
    (path / name).write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def test_a_directory_that_is_not_there_waits(tmp_path):
    assert outcome_of(tmp_path / "none") == Outcome(State.WAITING)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_checkpoint_waits(path):
    assert outcome_of(path) == Outcome(State.WAITING)


def test_asking_creates_nothing(path):
    (path / ".lock").unlink()
    before = sorted(path.iterdir())
    outcome_of(path)
    assert sorted(path.iterdir()) == before


def test_checkpoints_without_a_result_are_a_run_that_was_stopped(path):
    markers.commit(path / "checkpoints", 5, METRICS)
    markers.commit(path / "checkpoints", 10, None)
    (path / "checkpoints" / "ckpt-15.index").touch()
    assert outcome_of(path) == Outcome(State.STOPPED, 10, METRICS)


def test_the_newest_test_line_tells_the_metrics(path):
    markers.commit(path / "checkpoints", 5, {"loss": 9.0})
    line = {"step": 5, "split": "test", "epoch": 1, "loss": 0.25}
    write(path, {**line, "step": 3, "loss": 1.0}, line, {"step": 6, "split": "train", "loss": 7.0}, '{"step": 8, "spl')
    assert outcome_of(path) == Outcome(State.STOPPED, 5, {"loss": 0.25})
    write(path, {"step": 7, "split": "test", "loss": 0.125}, name="evaluations.jsonl")
    assert outcome_of(path).metrics == {"loss": 0.125}


def test_a_result_is_a_run_that_is_done_whoever_holds_it(path):
    finish(path)
    with (path / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert outcome_of(path) == Outcome(State.DONE, 20, METRICS)


def test_a_result_for_less_than_was_asked_for_last_is_not_done(path):
    finish(path)
    markers.commit(path / "checkpoints", 20, METRICS)
    provenance.add_entry(path, [], None, 20, [Change("train.steps", 20, 30), Change("checkpoint.keep", 2, 3)])
    assert outcome_of(path) == Outcome(State.STOPPED, 20, METRICS)
    asked = compose(["train.epochs=null", "train.steps=20"])
    assert outcome_of(path, asked).state is State.DONE
    finish(path, steps=30)
    assert (outcome_of(path).state, outcome_of(path, asked).state) == (State.DONE, State.STOPPED)


def test_a_run_that_another_process_holds_is_running(path):
    record_failure(path, "an earlier one")
    markers.commit(path / "checkpoints", 5, METRICS)
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code, path / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        assert outcome_of(path) == Outcome(State.RUNNING, 5, METRICS)
    finally:
        holder.communicate(timeout=20)
    assert outcome_of(path).state is State.FAILED


def test_two_who_ask_do_not_take_each_other_for_a_run(path):
    with (path / ".lock").open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert outcome_of(path).state is State.WAITING


def test_a_failure_is_told_until_the_run_goes_on(path):
    markers.commit(path / "checkpoints", 5, METRICS)
    record_failure(path, "ValueError: no")
    assert json.loads((path / "failure.json").read_text()) == {"error": "ValueError: no", "step": 5, "exit": 1}
    assert outcome_of(path) == Outcome(State.FAILED, 5, METRICS, "ValueError: no")
    forget_failure(path)
    forget_failure(path)
    assert outcome_of(path) == Outcome(State.STOPPED, 5, METRICS)


def test_damaged_files_say_nothing(path):
    for name in ("result.json", "failure.json", "run.json", "metrics.jsonl"):
        (path / name).write_text("{")
    assert outcome_of(path) == Outcome(State.WAITING)


IN_A_LAYER = "Exception encountered when calling layer 'l' (type L).\n\nboom\nmore\n\nCall arguments received by layer 'l':\n  • x=3\n"
IN_A_GRAPH = 'in user code:\n\n    File "m.py", line 3, in call  *\n        raise KeyError("k")\n\n    KeyError: \'k\'\n'
BOTH = f'in user code:\n\n    File "m.py", line 9, in f\n\n    ValueError: {IN_A_LAYER.replace("boom", IN_A_GRAPH)}'


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("boom\nmore"), "ValueError: boom"),
        (ValueError(), "ValueError"),
        (NonFiniteError("the loss became nan"), "the loss became nan"),
        (ValueError(IN_A_LAYER), "ValueError: boom"),
        (ValueError(IN_A_GRAPH), "KeyError: 'k'"),
        (ValueError(BOTH), "KeyError: 'k'"),
        (RuntimeError("{{function_node __inference_f_53}} indices = 3\n\t [[{{node Gather}}]]"), "RuntimeError: indices = 3"),
        (RuntimeError("Graph execution error:\n\nDetected at node x\nindices = 3\n"), "RuntimeError: indices = 3"),
    ],
)
def test_the_cause_is_one_line(error, line):
    assert cause_of(error) == line
    assert "\n" not in cause_of(error), traceback.format_exception_only(error)


@pytest.mark.slow
def test_a_run_that_diverges_has_failed_until_the_same_command_finishes_it(tmp_path):
    diverging = [*OPTIONS, "+fault.mine={what:nan,at:8}"]
    code, _, err = run(tmp_path, *diverging)
    path, why = only_run(tmp_path), "the loss became nan after 7 steps"
    assert code == 1, err
    failed = outcome_of(path)
    assert (failed.state, failed.step, sorted(failed.metrics)) == (State.FAILED, 6, ["accuracy", "loss"])
    assert failed.why.startswith(f"{why}; try ")
    assert f"{failed.why}\nerror: the worker crashed" in err
    assert "\n  step 5  train  " in (path / "crash.txt").read_text()
    code, _, err = run(tmp_path, *diverging)
    assert code == 0, err
    assert not (path / "failure.json").exists()
    assert not (path / "crash.txt").exists()
    result = json.loads((path / "result.json").read_text())
    assert outcome_of(path) == Outcome(State.DONE, 24, result["metrics"])
