import shlex

import pytest

from tests.support.choices import keys
from tests.support.command_line import run_here
from trainer.cli.command_table import COMMANDS
from trainer.config.schema import Experiment


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Return what `--help` with further words prints."""
    monkeypatch.chdir(tmp_path)

    def answer(*words):
        outcome = run_here("--help", *words)
        assert (outcome.code, outcome.err) == (0, "")
        assert not list(tmp_path.iterdir())
        return outcome.out

    return answer


def test_page_of_everything_lists_every_key_with_default(ask):
    words = ask("all").split()
    for key in keys(Experiment()):
        assert any(word.startswith(f"{key}=") for word in words), key
    assert "batch.global_size=128" in words
    assert "optimizer.learning_rate=0.001" in words
    assert "fault.<name>.action=kill" in words


def test_command_help_prints_the_same_pages(ask):
    assert run_here("help").out == ask()
    assert run_here("help", "train", "runs").out == ask("train", "runs")
    assert "runs --help" in ask("runs")


def test_examples_compose(ask):
    commands = [
        line.strip().removeprefix("python train.py")
        for line in ask("all").splitlines()
        if line.startswith("  python train.py")
    ]
    assert len(commands) >= 6
    not_here = ("dataset.path", "--config-dir", "mode", "model=mine", "resume", "-m")
    for command in commands:
        words = [
            word for word in shlex.split(command.split("  ")[0]) if not word.startswith(not_here)
        ]
        if words[:1] not in [[name] for name in COMMANDS]:
            points = [
                word.split(",")[0] if "(" not in word else word.split("=")[0] + "=1"
                for word in words
            ]
            assert run_here("--cfg", "job", *points).code == 0, command
