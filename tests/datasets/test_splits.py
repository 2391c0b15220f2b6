"""Splits: their files, the hash that divides them, arrays in memory, and all training features."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.splits.arrays import ArraySplit, read_npz
from trainer.datasets.splits.paths import (
    divided,
    find_files,
    find_splits,
    hash_numbers,
    hash_texts,
    visible_files,
)
from trainer.datasets.splits.training_features import training_features


def list_files(path, key):
    return find_files(path, key, suffixes=(".csv",))


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return str(folder)


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (["train/a.csv", "test/a.csv", "test/b.csv"], {"train": 1, "test": 2}),
        (["train/a.csv", "val/a.csv"], {"train": 1, "validation": 1}),
        (["train/a.csv", "test.csv"], {"train": 1}),
        (["train-1.csv", "train-2.csv", "my.val.csv"], {"train": 2, "validation": 1}),
        (["train.csv", "val.csv", "test_a.csv"], {"train": 1, "validation": 1, "test": 1}),
        (["train.csv", "trained.csv"], {"train": 2}),
        (["a.csv", "test.csv"], {"train": 1, "test": 1}),
        (["a.csv", "my.test.csv"], {"train": 2}),
        (["test.csv", "test_b.csv"], {"train": 2}),
    ],
)
def test_folders_or_names_of_files_tell_the_splits(tmp_path, names, sizes):
    splits = find_splits(write(tmp_path, *names), None, list_files)
    assert {name: len(files) for name, (_, files) in splits.present.items()} == sizes


def test_files_of_no_split_are_not_used(tmp_path, caplog):
    folder = write(tmp_path, "train.csv", "test.csv", "more.csv")
    assert find_splits(folder, None, list_files).train.files == [tmp_path / "train.csv"]
    assert "such as more.csv, are not used" in caplog.text


def test_test_path_and_lists_name_their_files(tmp_path):
    write(tmp_path, "train.csv", "test.csv", "b/train.csv")
    splits = find_splits(str(tmp_path), str(tmp_path / "b"), list_files)
    assert [len(files) for _, files in splits.present.values()] == [2, 1]
    names = [str(tmp_path / "test.csv"), str(tmp_path)]
    files = find_splits(names, None, list_files).train.files
    assert [file.name for file in files] == ["test.csv", "train.csv"]


def test_hashes_stay_the_same_for_ever():
    # Another hash would mix the splits of every user.
    assert hash_numbers(np.arange(2)).tolist() == [0.3381666012719897, 0.5665615751722809]
    assert hash_texts(["", "a"]).tolist() == [0.8894159948913369, 0.791374270522379]


def test_division_is_ascending_and_complete():
    parts = divided({"train": [0.5, 0.1, 0.9, 0.2]}, np.array, 0.3, "rows of a.csv")
    assert parts == {"train": [0.5, 0.9], "test": [0.1, 0.2]}
    with pytest.raises(ValueError, match=r"none of the 1 rows of a.csv in the train split"):
        divided({"train": [0.1]}, np.array, 0.3, "rows of a.csv")


FEATURES = np.arange(5 * 2 * 2 * 1, dtype=np.uint8).reshape(5, 2, 2, 1)
LABELS = np.array([4, 3, 2, 1, 0], np.uint8)


def test_graphs_capture_the_data_once_by_reference():
    split = ArraySplit(FEATURES, LABELS)
    graphs = [
        tf.function(split.fetch).get_concrete_function(tf.TensorSpec([2], tf.int64))
        for _ in range(2)
    ]
    captured = [{id(tensor) for tensor in graph.captured_inputs} for graph in graphs]
    assert captured[0] == captured[1]
    assert len(captured[0]) == 2


def test_read_npz_refuses_other_files_and_never_unpickles(tmp_path):
    file = tmp_path / "a.npz"
    for content in (b"", b"hello", b"PK\x03\x04 cut short"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"^.* cannot be read as an \.npz file.*$"):
            read_npz(file, ("x",))
    np.savez(file, x=np.array([{}], object))
    with pytest.raises(ValueError, match="Object arrays cannot be loaded when allow_pickle=False"):
        read_npz(file, ("x",))


def by_index(count, **more):
    def fetch(indices):
        return {"features": {"x": indices, "y": [indices]}, **more}

    return SimpleNamespace(num_examples=count, fetch=fetch)


def stream(count):
    rows = tf.data.Dataset.range(count).map(lambda i: {"features": {"x": i, "y": [i]}})
    return SimpleNamespace(num_examples=count, stream=rows.repeat)


def values(split, batch_size):
    sizes = []

    def transform(batch, draws):
        assert draws is None
        sizes.append(batch["features"]["x"].shape[0])  # static
        return batch

    dataset = SimpleNamespace(train=split, transform=transform)
    batches = [features["x"].numpy() for features in training_features(dataset, batch_size)]
    assert None not in sizes
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("make", [by_index, stream])
def test_all_examples_are_in_order(make):
    assert values(make(7), 3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert values(make(6), 3) == [[0, 1, 2], [3, 4, 5]]
    assert values(make(2), 3) == [[0, 1]]


def test_examples_without_weight_are_left_out():
    split = by_index(3, weight=tf.constant([1.0, 0.0, 1.0]))
    split.fetch = lambda indices: {
        "features": {"x": indices},
        "weight": tf.constant(np.float32([1, 0, 1])),
    }
    assert values(split, 3) == [[0, 2]]


def test_link_to_a_folder_that_it_is_in_adds_no_file(tmp_path):
    write(tmp_path, "data/cat/1.txt", "other/2.txt")
    (tmp_path / "data/cat/loop").symlink_to(tmp_path / "data")
    (tmp_path / "data/dog").symlink_to(tmp_path / "other")
    assert [file.name for file in visible_files(tmp_path / "data")] == ["1.txt", "2.txt"]
