from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import arrays
from tests.support.records import image_records, write
from trainer.datasets.image_folder import image_folder
from trainer.datasets.records.conversion import NOTES, Conversion
from trainer.datasets.splits.arrays import ArrayDataset, ArraySplit
from trainer.datasets.synthetic import synthetic
from trainer.datasets.tfrecord import tfrecord


def small() -> Any:
    return synthetic(num_examples=30, num_test=5, image_size=[4, 4], num_classes=3)


def convert(dataset: Any, folder: Path, **options: Any) -> tuple[int, list[str]]:
    lines: list[str] = []
    options = {
        "shard_bytes": 1200, "source": {"path": "x"},
        "announce": lines.append, **options,
    }  # fmt: skip
    return Conversion(dataset, folder, **options).run(), lines


def assert_same(read: Any, source: Any) -> None:
    """Assert that two datasets have the same examples, to the bit."""
    for name in ("train", "test"):
        split, other = getattr(read, name), getattr(source, name)
        numbers = np.arange(split.num_examples)
        batch, expected = arrays(split, numbers), arrays(other, numbers)
        assert split.num_examples == other.num_examples
        for key in ("features", "label"):
            assert batch[key].dtype == expected[key].dtype
            assert np.array_equal(batch[key], expected[key])
    for attribute in ("input_shape", "num_classes", "max_value"):
        assert getattr(read, attribute) == getattr(source, attribute)
    assert getattr(read, "class_names", None) == getattr(source, "class_names", None)


def test_arrays_are_read_back_to_the_bit(tmp_path: Path) -> None:
    kept, lines = convert(small(), tmp_path / "out")
    assert kept == 0
    assert lines[0] == (
        "wrote train-00000-of-00003.tfrecord: 12 of 30 examples of train, file 1 of 4"
    )
    assert lines[-1] == "verified test-00000-of-00001.tfrecord, file 4 of 4"
    assert_same(tfrecord(path=str(tmp_path / "out")), small())


def test_image_files_keep_their_bytes(tmp_path: Path) -> None:
    for number in range(8):
        split, label = ("train", "test")[number % 2], "ab"[number // 4]
        file = tmp_path / "images" / split / label / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image = np.random.default_rng(number).integers(0, 256, (9, 12, 3), np.uint8)
        file.write_bytes(tf.io.encode_jpeg(image).numpy())
    source = image_folder(path=str(tmp_path / "images"), image_size=[5, 6])
    convert(source, tmp_path / "out")
    assert_same(tfrecord(path=str(tmp_path / "out")), source)


@pytest.mark.slow
def test_records_are_copied(tmp_path: Path) -> None:
    write(tmp_path / "in" / "train.tfrecord", image_records(9))
    write(tmp_path / "in" / "test.tfrecord", image_records(4))
    features = {"image": "image", "label": {"kind": "int", "default": 1}}
    source = tfrecord(
        path=str(tmp_path / "in"), features=features, image_size=[4, 4], num_classes=3
    )
    convert(source, tmp_path / "out")
    assert_same(tfrecord(path=str(tmp_path / "out")), source)


def test_conversion_that_was_stopped_keeps_whole_files(tmp_path: Path) -> None:
    folder = tmp_path / "out"

    def stop_after_the_second(line: str) -> None:
        if "file 2" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(small(), folder, announce=stop_after_the_second)
    assert not (folder / "dataset.json").exists()
    second = folder / "train-00001-of-00003.tfrecord"
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    (folder / ".train-00002-of-00003.tfrecord.part").write_bytes(b"left by a kill")
    kept, lines = convert(small(), folder)
    assert kept == 1
    assert [line.split()[1][:11] for line in lines if "wrote" in line] == [
        "train-00001", "train-00002", "test-00000-",
    ]  # fmt: skip
    assert_same(tfrecord(path=str(folder)), small())
    assert convert(small(), folder)[0] == 4
    assert not list(folder.glob(".*.part"))


def test_source_that_changed_is_found(tmp_path: Path) -> None:
    convert(small(), tmp_path / "out")
    other = synthetic(num_examples=30, num_test=5, image_size=[4, 4], num_classes=3, seed=1)
    with pytest.raises(ValueError, match=r"train-00000-of-00003\.tfrecord: example 0 of train dif"):
        convert(other, tmp_path / "out")


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    convert(small(), tmp_path / "out")
    with pytest.raises(ValueError, match=r"out \(.*\) holds another conversion"):
        convert(small(), tmp_path / "out", source={"path": "y"})
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"out \(.*\) holds other files, such as"):
        convert(small(), tmp_path)


def test_missing_file_of_a_folder_is_named(tmp_path: Path) -> None:
    convert(small(), tmp_path)
    (tmp_path / "train-00001-of-00003.tfrecord").unlink()
    with pytest.raises(FileNotFoundError, match=r"train-00001-of-00003\.tfrecord, which dataset"):
        tfrecord(path=str(tmp_path))


def test_splits_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    class Weighted(ArraySplit):
        def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
            return {**super().fetch(indices), "weight": tf.ones(tf.shape(indices))}

    split = Weighted(np.zeros([4, 2]), np.zeros(4))
    dataset = ArrayDataset(train=split, test=split, input_shape=(2,), num_classes=2)
    with pytest.raises(ValueError, match="examples have features, label, weight; only"):
        convert(dataset, tmp_path)
    assert not (tmp_path / NOTES).exists()
