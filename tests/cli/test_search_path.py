"""`--config-dir` and `./conf`: their choices are searched first, by every command."""

import json
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import run_here
from trainer.cli import compose
from trainer.errors import ConfigError
from trainer.launch import launcher


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Return a directory that replaces the model `cnn`, and adds a model and a recipe."""
    folder = tmp_path / "their 'choices'"
    for name, text in {
        "model/cnn.yaml": "# a wide one\n_target_: trainer.models.cnn.cnn\nwidth: 99\n",
        "model/mine.yaml": (
            "# ours, with more dropout\ndefaults:\n  - tutorial_cnn\n  - _self_\nl2: 0.5\n"
        ),
        "experiment/mnist_tutorial.yaml": (
            "# @package _global_\n# theirs\ndefaults:\n  - override /model: "
            "mine\ntrain:\n  epochs: 7\n"
        ),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


@pytest.fixture
def found(theirs):
    """Return the directory as `conf` of the working directory."""
    return theirs.rename(Path("conf").absolute())


def model(*words):
    """Return the model that a command line composes."""
    content = yaml.safe_load(run_here(*words, "--cfg", "job").out)["model"]
    return content


@pytest.fixture
def runs(monkeypatch):
    """The commands that would have been run."""
    commands = []
    monkeypatch.setattr(launcher, "run", lambda command: commands.append(command) or 0)
    return commands


def test_config_dir_is_used_by_every_command(theirs, runs):
    flag = f"--config-dir=../{theirs.name}"
    assert model(flag)["width"] == 99
    assert run_here(flag).err == ""
    assert (runs[0].experiment.model["width"], runs[0].config_dir) == (99, str(theirs))


def test_conf_is_found_where_the_command_starts(found, tmp_path, runs, monkeypatch):
    monkeypatch.setenv("COMP_LINE", "python train.py model=mi")
    assert run_here("--shell-completion", "query=bash").out == "model=mine\n"
    assert "ours, with more dropout" in run_here("--help", "model").out
    # The comments of what it builds on are there too.
    rows = [line.split() for line in run_here("--help", "model=mine").out.splitlines()]
    assert any(row[:2] == ["model.l2=0.5", "weight"] for row in rows), rows
    outcome = run_here("model=mine")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Your config groups: conf\n", "")
    assert (runs[0].experiment.model["l2"], runs[0].config_dir) == (0.5, str(found))
    (tmp_path / "empty").mkdir()  # takes its place
    assert model(f"--config-dir={tmp_path}/empty")["width"] == 32


@pytest.mark.parametrize("name", ["config.yaml", "schema"])
def test_conf_of_another_program_is_not_taken(name, found):
    (found / name).mkdir()
    assert model()["width"] == 32


def test_resumed_run_prefers_its_own_choices_to_conf(theirs, tmp_path):
    run_dir = tmp_path / "runs" / "cnn-digits-1"
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").touch()
    record = run_dir / "run.json"
    record.write_text(json.dumps({"overrides": ["model=mine"], "config_dir": str(theirs)}))
    Path("conf/model").mkdir(parents=True)
    resume = f"resume={run_dir}"
    assert model(resume)["l2"] == 0.5
    moved = theirs / "model/mine.yaml"
    moved.rename("conf/model/mine.yaml")
    theirs.rename(tmp_path / "gone")
    assert model(resume)["l2"] == 0.5, "of conf, for the recorded one is gone"


@pytest.mark.parametrize("name", ["config.yaml", "schema"])
def test_config_dir_refuses_our_file_names(name, theirs):
    (theirs / name).mkdir()
    outcome = run_here("--config-dir", str(theirs), "--help")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: --config-dir ({theirs}): {name} is a name of ours; ")


def test_file_whose_aliases_multiply_is_refused(theirs):
    lines = ["_target_: trainer.models.cnn.cnn", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    names = (f"*a{number}" for number in range(30))
    lines += [f"a{n}: &a{n} [{', '.join([name] * 10)}]" for n, name in enumerate(names, 1)]
    file = theirs / "model" / "bomb.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"bomb.yaml:1: its aliases \(\*name\) make more than 1"):
        compose.compose(["model=bomb"], theirs)
    done = run_here(f"--config-dir={theirs}", "model=bomb", "--help")
    assert (done.code, "its aliases" in done.err) == (2, True)
