"""Windows of tokens: which tokens they have, the cache, and what is wrong with files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import check_dataset
from trainer.datasets import text_windows as module
from trainer.datasets.text_windows import text_windows
from trainer.datasets.texts import tokens

TEXT = "".join(f"{number} bottles of tea;\n" for number in range(40))


def tokens_of(split: Any) -> tuple[bytes, bytes]:
    """Return the features and the labels of all windows, one after the other."""
    batch = split.fetch(tf.range(split.num_examples, dtype=tf.int64))
    assert (batch["features"].dtype, batch["label"].dtype) == (tf.int32, tf.int64)
    features, labels = (
        bytes(batch[name].numpy().astype(np.uint8).ravel()) for name in ("features", "label")
    )
    return features, labels


@pytest.mark.parametrize("in_memory", [True, False])
def test_windows_have_each_token_once_and_the_one_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(module, "_IN_MEMORY", 0)
    (tmp_path / "tea.txt").write_text(TEXT)
    data = text_windows(path=str(tmp_path / "tea.txt"), length=16, test_fraction=0.25)
    assert (data.input_shape, data.num_classes, data.vocabulary_size) == ((16,), 256, 256)
    content = f"{TEXT}\n".encode()
    border = round(0.75 * len(content))
    for split, part in ((data.train, content[:border]), (data.test, content[border:])):
        assert split.in_memory is in_memory
        count = 16 * split.num_examples
        assert len(part) - 16 <= count < len(part)
        assert tokens_of(split) == (part[:count], part[1 : count + 1])
    check_dataset(data)


def test_tokens_are_made_once_and_again_when_a_file_changes(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tea.txt"
    file.write_text(TEXT)

    def first() -> bytes:
        return tokens_of(text_windows(path=str(file), length=8).train)[0][:8]

    assert first() == TEXT[:8].encode()
    (kept,) = (home / ".cache" / "steadfast").iterdir()
    monkeypatch.setattr(module.text_files, "read", None)
    assert first() == TEXT[:8].encode()
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(home))
    file.write_text(f"less {TEXT}")
    assert first() == b"less 0 b"
    assert len(list(kept.parent.iterdir())) == 2


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_texts_follow_each_other(tmp_path: Path, kind: str) -> None:
    texts = [part.strip() for part in (TEXT[:300], TEXT[300:500], TEXT[500:])]
    folder = tmp_path / "train"
    folder.mkdir()
    if kind == "txt":
        for number, text in enumerate(texts):
            (folder / f"{number}.txt").write_text(text)
    else:
        rows = [json.dumps({"body": text}) for text in texts]
        (folder / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "test").mkdir()
    for file in folder.iterdir():
        (tmp_path / "test" / file.name).write_bytes(file.read_bytes())
    expected = "".join(f"{text}|" for text in texts).encode()
    for path in (tmp_path, folder / f"*.{kind}"):
        test_path = None if path == tmp_path else str(tmp_path / "test")
        data = text_windows(
            path=str(path), test_path=test_path, text="body", separator="|", length=4
        )
        for split in (data.train, data.test):
            features, _ = tokens_of(split)
            assert expected.startswith(features)
            assert len(expected) - len(features) <= 4


def test_folder_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tea.txt").write_text(TEXT)
    data = text_windows(
        path=str(tmp_path / "tea.txt"), length=8, cache_dir=str(tmp_path / "tea.txt")
    )
    assert tokens_of(data.train)[0].startswith(TEXT[:100].encode())
    assert "set dataset.cache_dir=<folder>" in caplog.text


def test_damaged_build_leaves_no_file(tmp_path: Path) -> None:
    def parts() -> Any:
        yield np.zeros(3, np.uint8)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        tokens.kept_sequence(tmp_path, "name", np.dtype(np.uint8), parts)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path \(null\)"):
        text_windows()
    with pytest.raises(FileNotFoundError, match="no such file"):
        text_windows(path=str(tmp_path / "none"))
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(ValueError, match=r"length \(8\) must be < 5, the tokens of the train "):
        text_windows(path=str(tmp_path / "short.txt"), length=8)
    (tmp_path / "rows.jsonl").write_text('{"body": "a"}')
    with pytest.raises(ValueError, match=r"rows.jsonl, row 1 has no 'text', it has body; set "):
        text_windows(path=str(tmp_path / "rows.jsonl"))
