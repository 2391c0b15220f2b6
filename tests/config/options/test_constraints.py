from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config.options import constraints


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (1, ">= 1"),
        (0.5, "> 0, < 1"),
        (None, ">= 1"),
        ("max", "max | min"),
        (["tensorboard"], "each: tensorboard | jsonl"),
        ([], "each: >= 1"),
        ("auto", "auto or >= 1"),
        (3, "auto or >= 1"),
        (1e-7, "> 0"),
    ],
)
def test_violation_is_none_for_allowed_value(value: object, rule: str) -> None:
    assert constraints.violation(value, rule) is None


@pytest.mark.parametrize(
    ("value", "rule", "line"),
    [
        (0, ">= 1", "key (0) must be >= 1"),
        (1.0, ">= 0, < 1", "key (1.0) must be >= 0 and < 1"),
        ("many", ">= 1", "key (many) must be >= 1"),
        (True, ">= 1", "key (True) must be >= 1"),
        (float("inf"), "> 0", "key (inf) must be finite"),
        (float("nan"), "> 0", "key (nan) must be > 0"),
        ("mx", "max | min", "key (mx) must be one of max, min; did you mean 'max'?"),
        (
            ["jsnl"],
            "each: tensorboard | jsonl",
            "key (['jsnl']) each item must be one of tensorboard, jsonl; did you mean 'jsonl'?",
        ),
        ([0, 1], "each: >= 1", "key ([0, 1]) each item must be >= 1"),
        (0, "auto or >= 1", "key (0) must be auto or >= 1"),
        ("fast", "auto or >= 1", "key (fast) must be auto or >= 1"),
        ("/no/where", "exists", "key (/no/where): no such file or directory"),
        ("/no/where", "file", "key (/no/where): no such file"),
        ("/no/where", "directory", "key (/no/where): no such directory"),
        ("/no/where", "checkpoint", "key (/no/where): no such run, checkpoint or file"),
    ],
)
def test_check_value_reports_violation(value: object, rule: str, line: str) -> None:
    assert constraints.check_value("key", value, rule) == line


def test_weights_that_keras_publishes_have_a_place() -> None:
    line = constraints.violation("imagenet", "file")
    assert line is not None
    assert "in ~/.keras/models" in line


def test_checkpoint_rule_accepts_prefix_of_files(tmp_path: Path) -> None:
    (tmp_path / "ckpt-10.index").touch()
    assert constraints.violation(str(tmp_path / "ckpt-10"), "checkpoint") is None
    assert constraints.violation(str(tmp_path / "ckpt-11"), "checkpoint") is not None


@pytest.mark.parametrize(
    "text",
    ["> 0", ">= 0, < 1", "max | min", "each: >= 1", "auto or >= 1", "file", ">= 1e-7", "> -1.5"],
)
def test_is_rule_accepts_rules(text: str) -> None:
    assert constraints.is_rule(text)


@pytest.mark.parametrize("text", ["number of layers", "", "seconds", ">0", "> x", "this or that"])
def test_is_rule_refuses_other_notes(text: str) -> None:
    assert not constraints.is_rule(text)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("train.stepz", "unknown key 'train.stepz'; did you mean 'steps'?"),
        ("learning_rate", "unknown key 'learning_rate'; did you mean 'optimizer.learning_rate'?"),
        ("keep", "unknown key 'keep'; did you mean 'checkpoint.keep'?"),
        ("modle", "unknown key 'modle'; did you mean 'model'?"),
        (
            "train.learning_rate",
            "unknown key 'train.learning_rate'; did you mean 'optimizer.learning_rate'?",
        ),
        (
            "optimizer.gamma",
            "unknown key 'optimizer.gamma'; known keys of optimizer: learning_rate",
        ),
        ("zzz", "unknown key 'zzz'; see --help for all keys"),
    ],
)
def test_unknown_key_suggests_nearest(key: str, line: str) -> None:
    root: dict[str, dict[str, object] | None] = {
        "mode": None,
        "model": None,
        "train": {"steps": 1},
        "checkpoint": {"best": {"keep": 1}, "keep": 2},
        "optimizer": {"_target_": "x", "learning_rate": 0.1},
    }
    parent = key.rpartition(".")[0]
    assert constraints.unknown_key(key, (root[parent] if parent else root) or {}, root) == line


def test_or_rule_accepts_words_and_numbers() -> None:
    rule = "latest | best or >= 0"
    assert [constraints.violation(value, rule) for value in ("latest", "best", 0, 120)] == [
        None
    ] * 4
    assert (
        constraints.violation("bestt", rule) == "must be latest, best or >= 0; did you mean 'best'?"
    )
    assert constraints.violation(-1, rule) == "must be latest, best or >= 0"
