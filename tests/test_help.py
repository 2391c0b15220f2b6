from __future__ import annotations

import contextlib
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import ROOT, run_apart, run_here

from trainer.comments import first_comment
from trainer.schema import GROUPS, Experiment

# Measured at 0.7 s; a loaded machine may take several times as long, importing TensorFlow longer still.
LIMIT_SECS = 6


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("help")
    with contextlib.chdir(folder):
        outcome = run_here("--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert not list(folder.iterdir())
    return outcome.out


def test_every_choice_is_explained(page: str) -> None:
    for group in GROUPS:
        for file in (ROOT / "conf" / group).glob("*.yaml"):
            explanation = first_comment(file.read_text())
            assert explanation
            assert any(line.split() == [file.stem, *explanation.split()] for line in page.splitlines()), file


def test_nothing_of_hydra_or_the_schema_is_shown(page: str) -> None:
    assert "schema" not in page
    assert "hydra" not in page
    assert "$" not in page


def keys(schema: Any, path: str = "") -> list[str]:
    found = []
    for item in fields(schema):
        value = getattr(schema, item.name)
        if is_dataclass(value):
            found += keys(value, f"{path}{item.name}.")
        elif item.name not in (*GROUPS, "choices"):
            assert item.metadata["help"], item.name
            found.append(f"{path}{item.name}=")
    return found


def test_every_key_is_listed_with_its_default(page: str) -> None:
    words = page.split()
    for key in keys(Experiment()):
        assert any(word.startswith(key) for word in words), key
    assert "batch.global_size=128" in words
    assert "summary.writers=[tensorboard,jsonl]" in words
    assert "learning_rate=0.001" in words


def test_no_line_is_too_long(page: str) -> None:
    assert max(len(line) for line in page.splitlines()) <= 120


def test_examples_compose(page: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    commands = [line.strip().removeprefix("python train.py") for line in page.splitlines() if line.startswith("  python train.py")]
    assert len(commands) >= 6
    for command in commands:
        arguments = [word for word in command.split("  ")[0].split() if "<run>" not in word and word not in ("-m", "model=mine")]
        arguments = [word.split(",")[0] for word in arguments if not word.startswith(("dataset.path", "--config-dir", "mode"))]
        assert run_here("--cfg", "job", *arguments).code == 0, command


def test_help_shows_the_keys_of_the_choices_that_are_made(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    assert "momentum=0.9 nesterov=false" in run_here("--help", "optimizer=sgd").out


def test_help_shows_the_users_own_choices(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    (tmp_path / "theirs" / "model").mkdir(parents=True)
    (tmp_path / "theirs" / "model" / "mine.yaml").write_text("# a model of mine\n_target_: a.b\n")
    page = run_here("--help", f"--config-dir={tmp_path}/theirs").out
    assert ["mine", "a", "model", "of", "mine"] in [line.split() for line in page.splitlines()]


def test_help_answers_at_once_without_tensorflow(work: Path) -> None:
    began = time.monotonic()
    outcome = run_apart("--help", cwd=work)
    assert time.monotonic() - began < LIMIT_SECS
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Steadfast: ")
    assert not list(work.iterdir())


def test_cfg_job_answers_at_once_without_tensorflow(work: Path) -> None:
    began = time.monotonic()
    outcome = run_apart("--cfg", "job", "model=mobilenet", "train.steps=7", cwd=work)
    assert time.monotonic() - began < LIMIT_SECS
    assert (outcome.code, outcome.err) == (0, "")
    shown = yaml.safe_load(outcome.out)
    assert shown["model"]["_target_"] == "trainer.models.mobilenet.mobilenet"
    assert shown["train"]["steps"] == 7
    assert shown["train"]["epochs"] is None
    assert not list(work.iterdir())


def test_flags_may_stand_anywhere(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    outcome = run_here("seed=1", "--cfg", "job", "model.width=3")
    assert yaml.safe_load(outcome.out)["seed"] == 1
    assert yaml.safe_load(outcome.out)["model"]["width"] == 3
