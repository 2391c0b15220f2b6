import json
from pathlib import Path

import pytest

from tests.support.command_line import run_apart, run_here
from trainer.launch import launcher
from trainer.launch.run_context import resolve
from trainer.sweep import driver


def golden():
    """Return the problems of each command."""
    entries, problems = {}, []
    for line in Path(__file__).with_name("wrong_commands.txt").read_text().splitlines():
        command, arrow, problem = line.partition("=> ")
        if arrow and not line.startswith("#"):
            if command.strip():
                entries[command.strip()] = problems = []
            problems.append(problem)
    return entries


WRONG = golden()


def assert_reports(outcome, problems, work):
    """Assert that a command ends with these problems, a line each, and without a trace."""
    lines = outcome.err.splitlines()
    assert len(lines) == len(problems), outcome.err
    for line, problem in zip(lines, problems, strict=True):
        start, _, fix = problem.partition(" ...")
        assert line.startswith(f"error: {start}")
        assert fix.strip() in line
    assert (outcome.code, outcome.out) == (2, "")
    assert not list(work.iterdir())


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Return an empty working directory, and let the launcher check a command and end."""

    def refuse(command, *_):
        resolve(command.experiment)
        raise AssertionError("a wrong configuration was launched")

    monkeypatch.setattr(launcher, "run", refuse)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("command", WRONG)
def test_wrong_command_or_file_is_reported(command, work, tmp_path):
    theirs = tmp_path / "theirs"
    name, is_file, text = command.partition(".yaml:")
    words = command.split()
    if is_file:
        (theirs / name).parent.mkdir(parents=True)
        (theirs / f"{name}.yaml").write_text("\n".join(text.strip().split(" | ")))
        words = ["--config-dir=../theirs", name.replace("/", "=")]
    problems = [problem.replace("../theirs", str(theirs)) for problem in WRONG[command]]
    assert_reports(run_here(*words), problems, work)


def test_hydra_makes_no_directory(work, tmp_path, monkeypatch):
    commands = launches(monkeypatch)
    (tmp_path / "theirs" / "experiment").mkdir(parents=True)
    text = (
        "# @package _global_\nhydra: {mode: MULTIRUN, run: {dir: made}, sweep: {dir: "
        "made}, output_subdir: made, job: {chdir: true}}\n"
    )
    (tmp_path / "theirs" / "experiment" / "hydra.yaml").write_text(text)
    assert run_here("--config-dir=../theirs", "experiment=hydra").code == 0
    assert len(commands) == 1
    assert not list(work.iterdir())


@pytest.fixture
def run(work, tmp_path):
    """Return a run directory with an empty configuration."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    return tmp_path / "run"


def test_resume_allow_refuses_unknown_keys(run, work):
    outcome = run_here(f"resume={run}", "resume_allow=[optimizer.learning_rte,schedul,seed,model]")
    expected = [
        "resume_allow: unknown key 'optimizer.learning_rte' ... did you mean "
        "'optimizer.learning_rate'?",
        "resume_allow: unknown key 'schedul'; did you mean 'schedule'?",
    ]
    assert_reports(outcome, expected, work)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["model=mobilnet", "-m search=random", "diff a b"])
def test_separate_process_reports_the_same_without_tensorflow(command, work):
    assert_reports(run_apart(*command.split(), cwd=work), WRONG[command], work)


def launches(monkeypatch, code=0):
    """Have the launcher end with an exit code; return the commands that it is given."""
    commands = []

    def run(command):
        commands.append(command)
        return code

    monkeypatch.setattr(launcher, "run", run)
    return commands


def test_exit_code_is_that_of_the_run(work, monkeypatch):
    commands = launches(monkeypatch, 143)
    outcome = run_here("train.steps=5", "seed=1")
    assert (outcome.code, outcome.err, outcome.out) == (143, "", "")
    assert commands[0].overrides == ["train.steps=5", "seed=1", "train.epochs=null"]
    assert commands[0].config_dir is None
    assert not list(work.iterdir())


def test_resumed_run_is_composed_of_its_overrides(run, tmp_path, monkeypatch):
    (tmp_path / "theirs" / "model").mkdir(parents=True)
    (tmp_path / "theirs" / "model" / "mine.yaml").write_text(
        "_target_: trainer.models.cnn.cnn\nwidth: 3\n"
    )
    record = {
        "overrides": ["model=mine", "train.steps=5", "train.epochs=null"],
        "config_dir": str(tmp_path / "theirs"),
    }
    (run / "run.json").write_text(json.dumps(record))
    commands = launches(monkeypatch)
    assert run_here(f"resume={run}", "train.epochs=9").code == 0
    experiment, config_dir = commands[0].experiment, commands[0].config_dir
    assert (experiment.train.steps, experiment.train.epochs) == (None, 9)
    assert (experiment.model["width"], config_dir) == (3, str(tmp_path / "theirs"))
    # The last command counts, without what it allowed.
    lineage = [{"overrides": ["seed=2"]}, {"overrides": ["seed=3", "resume_allow=[seed]"]}]
    (run / "run.json").write_text(json.dumps({**record, "lineage": lineage}))
    assert run_here(f"resume={run}", "jit=true").code == 0
    experiment = commands[1].experiment
    assert (experiment.seed, experiment.jit, experiment.resume_allow) == (3, True, [])


def test_resumed_run_needs_its_masked_overrides_again(run):
    record = {"overrides": ["seed=1", "init_from=https://<masked>@host/a.npz"]}
    (run / "run.json").write_text(json.dumps(record))
    done = run_here(f"resume={run}")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "init_from was masked in its run.json, because it holds a secret; give" in done.err


def test_multirun_calls_sweep(work, monkeypatch):
    calls = []
    monkeypatch.setattr(driver, "run_sweep", lambda *arguments: calls.extend(arguments) or 143)
    assert run_here("-m", "model=cnn,softmax", "train.steps=1,2").code == 143
    assert calls == [["model=cnn,softmax", "train.steps=1,2", "train.epochs=null"], None]
