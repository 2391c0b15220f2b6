"""`--config-dir`: what lies there is searched first, on every way to a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_line import run_here

from trainer import cli, launch
from trainer.errors import ConfigError

REFUSED = "is a name of ours; put choices in files such as model/mine.yaml, and values that belong together in experiment/mine.yaml"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives a directory that replaces the model `cnn`, adds one that builds on ours, and has a recipe; beside the working directory."""
    folder = tmp_path / "their 'choices'"
    for name, text in {
        "model/cnn.yaml": "# a wide one\n_target_: trainer.models.cnn.cnn\nwidth: 99\n",
        "model/mine.yaml": "# ours, with more dropout\ndefaults:\n  - tutorial_cnn\n  - _self_\nl2: 0.5\n",
        "experiment/mnist_tutorial.yaml": "# @package _global_\n# theirs\ndefaults:\n  - override /model: mine\ntrain:\n  epochs: 7\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def test_a_file_of_theirs_replaces_ours_of_the_same_name(theirs: Path) -> None:
    assert cli.compose([], theirs).model == {"_target_": "trainer.models.cnn.cnn", "width": 99}
    assert cli.compose(["experiment=mnist_tutorial"], theirs).train.epochs == 7


def test_a_file_of_theirs_may_build_on_ours(theirs: Path) -> None:
    assert cli.compose(["model=mine"], theirs).model == {"_target_": "trainer.models.tutorial_cnn.tutorial_cnn", "l2": 0.5}


def test_without_it_ours_are_there(theirs: Path) -> None:
    cli.compose([], theirs)
    assert cli.compose([]).model["width"] == 32


def test_it_is_relative_to_the_working_directory(theirs: Path) -> None:
    assert cli.compose([], f"../{theirs.name}").model["width"] == 99


def test_a_command_shows_and_runs_the_same(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = f"--config-dir=../{theirs.name}"
    assert yaml.safe_load(run_here(flag, "--cfg", "job").out)["model"]["width"] == 99
    runs = []
    monkeypatch.setattr(launch, "run", lambda experiment, overrides, config_dir, spare: runs.append((experiment, config_dir)) or 0)
    outcome = run_here(flag)
    assert (outcome.code, outcome.err) == (0, "")
    ((experiment, config_dir),) = runs
    assert (experiment.model["width"], config_dir) == (99, str(theirs))


def test_help_explains_theirs(theirs: Path) -> None:
    lines = [line.split() for line in run_here("--help", f"--config-dir={theirs}").out.splitlines()]
    assert ["cnn", "a", "wide", "one"] in lines
    assert not any(line[:1] == ["cnn"] and "small" in line for line in lines)


@pytest.mark.parametrize("name", ["config.yaml", "schema"])
def test_what_is_not_theirs_to_replace(name: str, theirs: Path) -> None:
    (theirs / name).mkdir()
    with pytest.raises(ConfigError) as raised:
        cli.compose([], theirs)
    assert raised.value.problems == (f"--config-dir ({theirs}): {name} {REFUSED}",)
    outcome = run_here("--config-dir", str(theirs), "--help")
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"error: --config-dir ({theirs}): {name} {REFUSED}\n")
