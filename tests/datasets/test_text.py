"""Texts, labeled and in windows: reading, encoding, the cache, and what is wrong with files."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import check_dataset
from tests.support.toy_sources import everything
from trainer.datasets import text_windows as windows_module
from trainer.datasets.text import text
from trainer.datasets.text_windows import text_windows
from trainer.datasets.texts import text_files

TEXTS = ["a cat", "two dogs", "ein Käfer", "", "a much longer text than the others"]


def write_rows(path, count=40, *, text="text", label="label"):
    rows = [{text: f"{TEXTS[i % 5]} {i}", label: "ab"[i % 2]} for i in range(count)]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    return path


def texts_of(data):
    """Return every text and label, of both splits, back from their bytes."""
    found = []
    for split in (data.train, data.test):
        batch = everything(split)
        for row, label in zip(batch["features"], batch["label"], strict=True):
            numbers = row[row > 0] - 1
            assert (row[len(numbers) :] == 0).all()
            found.append((bytes(numbers.tolist()).decode(), data.class_names[label]))
    return found


def test_csv_parquet_and_json_lines_are_the_same(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_rows(tmp_path / "rows.jsonl", text="review", label="stars")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["number", "stars", "review"])
        writer.writeheader()
        writer.writerows({"number": 1, **row} for row in rows)
    expected = sorted((f"{TEXTS[i % 5]} {i}", "ab"[i % 2]) for i in range(40))
    for kind in ("jsonl", "parquet", "csv"):
        options = {"text": "review", "label": "stars", "test_fraction": 0.3}
        data = text(path=str(tmp_path / f"rows.{kind}"), length=64, **options)
        assert sorted(texts_of(data)) == expected
        assert (data.input_shape, data.num_classes, data.vocabulary_size) == ((64,), 2, 257)


def test_folders_of_text_files_are_classes(tmp_path):
    for split, name in (("train", "1"), ("train", "2"), ("test", "3")):
        for label in ("neg", "pos"):
            file = tmp_path / split / label / f"{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{label} {name}")
    data = text(path=str(tmp_path), length=8)
    assert texts_of(data) == [
        ("neg 1", "neg"), ("neg 2", "neg"), ("pos 1", "pos"), ("pos 2", "pos"),
        ("neg 3", "neg"), ("pos 3", "pos"),
    ]  # fmt: skip


def test_texts_are_cut_at_the_length_and_integer_labels_are_sorted(tmp_path):
    rows = [{"text": "abcdef", "label": label} for label in (10, 9, 10, 9)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    data = text(path=str(path), test_path=str(path), length=4)
    assert data.class_names == ("9", "10")
    assert texts_of(data) == [("abcd", label) for label in ("10", "9", "10", "9")] * 2


def test_tokenizers_are_read_from_files(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "a": 1, "cat": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "words.json"))
    data = text(
        path=str(write_rows(tmp_path / "rows.jsonl")), length=3, tokenizer=f"{tmp_path}/words.json"
    )
    assert data.vocabulary_size == 4
    assert everything(data.train)["features"][:2].tolist() == [[2, 3, 1], [1, 1, 1]]


def test_sentencepiece_is_read_from_a_file(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_prefix=str(tmp_path / "pieces"),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    file = str(tmp_path / "pieces.model")
    path = str(write_rows(tmp_path / "rows.jsonl"))
    data = text(path=path, test_path=path, length=20, tokenizer=file)
    processor = sentencepiece.SentencePieceProcessor(model_file=file)
    row = everything(data.train)["features"][0]
    assert (row[row > 0] - 1).tolist() == processor.encode("a cat 0")


def test_tokens_are_kept_until_a_file_changes(tmp_path, home, monkeypatch):
    path = write_rows(tmp_path / "rows.jsonl")
    first = texts_of(text(path=str(path)))
    (kept,) = (home / ".cache" / "steadfast").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(text_files, "read", None)
        assert texts_of(text(path=str(path))) == first
        with pytest.raises(TypeError, match="NoneType"):
            text(path=str(path), length=7)
    kept.write_bytes(kept.read_bytes()[:100])  # cut short
    assert texts_of(text(path=str(path))) == first
    assert len(texts_of(text(path=str(write_rows(path, 60))))) == 60


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "txt"])
def test_texts_to_predict_need_no_label(tmp_path, kind):
    train = write_rows(tmp_path / "rows.jsonl")
    new = tmp_path / "new" / f"new.{kind}"
    new.parent.mkdir()
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist([{"text": "a cat"}]), new)
    else:
        new.write_text({"jsonl": '{"text": "a cat"}\n', "csv": "text\na cat\n"}.get(kind, "a cat"))
    for path in (new, new, new.parent):  # the second time from the cache
        data = text(path=str(train), test_path=str(path), length=8)
        assert data.class_names == ("a", "b")
        assert data.test.labels is None
        batch = everything(data.test)
        assert list(batch) == ["features"]
        assert bytes((batch["features"][0][:5] - 1).tolist()) == b"a cat"


def test_graph_makes_the_features_of_the_split(tmp_path):
    data = text(path=str(write_rows(tmp_path / "rows.jsonl")), length=12)
    assert data.from_texts is not None
    (split,) = everything(data.test)["features"][:1]
    content = bytes((split[split > 0] - 1).tolist())
    made = data.from_texts(tf.constant([content, content + b"\0", b"", b"z" * 50])).numpy()
    np.testing.assert_array_equal(made[0], split)
    assert made[1][len(content)] == 1  # a byte 0 is no padding
    assert made[2].tolist() == [0] * 12
    assert made[3].tolist() == [ord("z") + 1] * 12


TEA = "".join(f"{number} bottles of tea;\n" for number in range(40))


def windows_of(split):
    """Return the features and the labels of all windows, one after the other."""
    batch = everything(split)
    assert (batch["features"].dtype, batch["label"].dtype) == (np.int32, np.int64)
    features, labels = (
        bytes(batch[name].astype(np.uint8).ravel()) for name in ("features", "label")
    )
    return features, labels


@pytest.mark.parametrize("in_memory", [True, False])
def test_windows_have_each_token_once_and_the_one_after_it(tmp_path, monkeypatch, in_memory):
    if not in_memory:
        monkeypatch.setattr(windows_module, "_IN_MEMORY", 0)
    (tmp_path / "tea.txt").write_text(TEA)
    data = text_windows(path=str(tmp_path / "tea.txt"), length=16, test_fraction=0.25)
    assert (data.input_shape, data.num_classes, data.vocabulary_size) == ((16,), 256, 256)
    content = f"{TEA}\n".encode()
    border = round(0.75 * len(content))
    for split, part in ((data.train, content[:border]), (data.test, content[border:])):
        assert split.in_memory is in_memory
        count = 16 * split.num_examples
        assert len(part) - 16 <= count < len(part)
        assert windows_of(split) == (part[:count], part[1 : count + 1])
    check_dataset(data)


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_windows_go_from_text_to_text(tmp_path, kind):
    texts = [part.strip() for part in (TEA[:300], TEA[300:500], TEA[500:])]
    for folder in (tmp_path / "train", tmp_path / "test"):
        folder.mkdir()
        for number, part in enumerate(texts):
            if kind == "txt":
                (folder / f"{number}.txt").write_text(part)
        if kind == "jsonl":
            rows = [json.dumps({"body": part}) for part in texts]
            (folder / "rows.jsonl").write_text("\n".join(rows))
    expected = "".join(f"{part}|" for part in texts).encode()
    for path, test_path in ((tmp_path, None), (tmp_path / f"train/*.{kind}", f"{tmp_path}/test")):
        data = text_windows(
            path=str(path), test_path=test_path, text="body", separator="|", length=4
        )
        for split in (data.train, data.test):
            features, _ = windows_of(split)
            assert expected.startswith(features)
            assert len(expected) - len(features) <= 4
