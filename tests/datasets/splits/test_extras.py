"""Packages that only some datasets need, and the one line that names a missing one."""

import json
import sys
from pathlib import Path

import pytest

from trainer.datasets.splits.extras import import_extra
from trainer.datasets.tables.table_files import CsvFormat, column_names
from trainer.datasets.texts import tokenization
from trainer.datasets.texts.text_files import read_plain


def test_import_extra_returns_the_module() -> None:
    assert import_extra("json", "any", "dataset=any") is json


def test_import_extra_names_what_needs_the_missing_package() -> None:
    with pytest.raises(
        ValueError,
        match=r"^dataset=tfds needs the package no_such_package, which is missing; "
        r"pip install 'steadfast\[tfds\]'$",
    ):
        import_extra("no_such_package.part", "tfds", "dataset=tfds")


def test_missing_reader_of_parquet_is_named_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "rows.parquet"
    for read in (
        lambda: column_names(file, CsvFormat()),
        lambda: list(read_plain([file], "text")),
    ):
        with pytest.raises(ValueError, match=r"rows.parquet needs the package pyarrow, .*parquet]"):
            read()


@pytest.mark.parametrize(
    ("suffix", "package"), [("json", "tokenizers"), ("model", "sentencepiece")]
)
def test_missing_library_of_a_tokenizer_is_named(
    suffix: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    file = tmp_path / f"words.{suffix}"
    file.write_bytes(b"{}")
    with pytest.raises(ValueError, match=rf"^tokenizer \(.*\) needs the package {package}, "):
        tokenization.load(str(file))
