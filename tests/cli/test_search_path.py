"""`--config-dir`: its choices are searched first, by every command."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.command_line import run_here
from trainer.cli import compose
from trainer.errors import ConfigError
from trainer.launch import launcher

REFUSED = (
    "is a name of ours; put choices in files such as model/mine.yaml, and values that "
    "belong together in experiment/mine.yaml"
)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_user_choice_replaces_ours_of_same_name(theirs: Path) -> None:
    assert compose.compose([], theirs).model == {"_target_": "trainer.models.cnn.cnn", "width": 99}
    assert compose.compose(["experiment=mnist_tutorial"], theirs).train.epochs == 7
    assert compose.compose([]).model["width"] == 32


def test_user_choice_can_build_on_ours(theirs: Path) -> None:
    assert compose.compose(["model=mine"], theirs).model == {
        "_target_": "trainer.models.tutorial_cnn.tutorial_cnn",
        "l2": 0.5,
    }


def test_cfg_and_run_use_same_choices(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = f"--config-dir=../{theirs.name}"
    assert yaml.safe_load(run_here(flag, "--cfg", "job").out)["model"]["width"] == 99
    runs = []
    monkeypatch.setattr(launcher, "run", lambda command: runs.append(command) or 0)
    outcome = run_here(flag)
    assert (outcome.code, outcome.err) == (0, "")
    (command,) = runs
    assert (command.experiment.model["width"], command.config_dir) == (99, str(theirs))


@pytest.mark.parametrize("name", ["config.yaml", "schema"])
def test_config_dir_refuses_our_file_names(name: str, theirs: Path) -> None:
    (theirs / name).mkdir()
    with pytest.raises(ConfigError) as raised:
        compose.compose([], theirs)
    assert raised.value.problems == (f"--config-dir ({theirs}): {name} {REFUSED}",)
    outcome = run_here("--config-dir", str(theirs), "--help")
    assert (outcome.code, outcome.out, outcome.err) == (
        2,
        "",
        f"error: --config-dir ({theirs}): {name} {REFUSED}\n",
    )


def test_file_whose_aliases_multiply_is_refused(theirs: Path) -> None:
    lines = ["_target_: trainer.models.cnn.cnn", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    names = (f"*a{number}" for number in range(30))
    lines += [f"a{n}: &a{n} [{', '.join([name] * 10)}]" for n, name in enumerate(names, 1)]
    file = theirs / "model" / "bomb.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"bomb.yaml:1: its aliases \(\*name\) make more than 1"):
        compose.compose(["model=bomb"], theirs)
    done = run_here(f"--config-dir={theirs}", "model=bomb", "--help")
    assert (done.code, "its aliases" in done.err) == (2, True)


def test_aliases_of_a_choice_stand_for_their_values(theirs: Path) -> None:
    text = "_target_: trainer.models.cnn.cnn\nwidth: &width 32\nhidden: *width\n"
    (theirs / "model" / "alias.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"hidden"):
        compose.compose(["model=alias"], theirs)
    (theirs / "model" / "alias.yaml").write_text(text.replace("hidden: *", "batch_norm: *"))
