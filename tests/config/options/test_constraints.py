from __future__ import annotations

from pathlib import Path

import pytest

from trainer.annotations import Each, Exists, Ge, Gt, Lt, OneOf, Rule
from trainer.config.options import constraints


@pytest.mark.parametrize(
    ("value", "rules", "line"),
    [
        (None, [Ge(1)], None),
        (0.5, [Gt(0), Lt(1)], None),
        ([], [Each((Ge(1),))], None),
        ("max", [OneOf("max", "min")], None),
        (3, [OneOf("auto", or_at_least=1)], None),
        (0.5, [OneOf("auto", or_above=0)], None),
        (0, [Ge(1)], "key (0) must be >= 1"),
        (1.0, [Ge(0), Lt(1)], "key (1.0) must be >= 0 and < 1"),
        ("many", [Ge(1)], "key (many) must be >= 1"),
        (True, [Ge(1)], "key (True) must be >= 1"),
        (float("inf"), [Gt(0)], "key (inf) must be finite"),
        (float("nan"), [Gt(0)], "key (nan) must be > 0"),
        ("mx", [OneOf("max", "min")], "key (mx) must be one of max, min; did you mean 'max'?"),
        ([0, 1], [Each((Ge(1),))], "key ([0, 1]) each item must be >= 1"),
        (0, [OneOf("auto", or_at_least=1)], "key (0) must be auto or >= 1"),
        (0, [OneOf("auto", or_above=0)], "key (0) must be auto or > 0"),
        ("aut", [OneOf("auto", or_at_least=1)], "key (aut) must be auto or >= 1; did you mean "
         "'auto'?"),
        ("/no/where", [Exists()], "key (/no/where): no such file or directory"),
        ("/no/where", [Exists("file")], "key (/no/where): no such file"),
        ("/no/where", [Exists("checkpoint")], "key (/no/where): no such run, checkpoint or file"),
    ],
)  # fmt: skip
def test_check_value_reports_violation(value: object, rules: list[Rule], line: str | None) -> None:
    assert constraints.check_value("key", value, *rules) == line


def test_word_in_place_of_a_file_is_let_pass() -> None:
    assert constraints.violation("imagenet", [Exists("file", or_word="imagenet")]) is None
    assert (
        constraints.violation("imagine", [Exists("file", or_word="imagenet")]) == ": no such file"
    )


def test_checkpoint_rule_accepts_prefix_of_files(tmp_path: Path) -> None:
    (tmp_path / "ckpt-10.index").touch()
    assert constraints.violation(str(tmp_path / "ckpt-10"), [Exists("checkpoint")]) is None
    assert constraints.violation(str(tmp_path / "ckpt-11"), [Exists("checkpoint")]) is not None
