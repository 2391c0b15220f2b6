from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.image_folder import image_folder

SIZE = [4, 6]


def write(path: Path, value: int) -> Path:
    """Write an image of one color, losslessly for .png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.full((9, 12, 3), value, np.uint8)
    encode = tf.io.encode_png if path.suffix.lower() == ".png" else tf.io.encode_jpeg
    path.write_bytes(encode(image).numpy())
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes, train/ and test/; the value of an image tells it from the others."""
    for number in range(4):
        write(tmp_path / "train" / "cat" / f"{number}.png", number)
        write(tmp_path / "train" / "ant" / f"{number}.jpg", 100 + number)
        write(tmp_path / "test" / "cat" / f"{number}.JPEG", 200 + number)
    return tmp_path


def all_of(split: Any) -> dict[str, np.ndarray]:
    batch = split.fetch(tf.range(split.num_examples, dtype=tf.int64))
    return {name: tensor.numpy() for name, tensor in batch.items()}


def test_image_folder_reads_splits_classes_and_pixels(tree: Path) -> None:
    data = image_folder(path=str(tree), image_size=SIZE)
    assert (data.input_shape, data.num_classes, data.train.in_memory) == ((4, 6, 3), 2, False)
    train, test = all_of(data.train), all_of(data.test)
    assert train["label"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert train["features"][:, 0, 0, 0].tolist() == [100, 101, 102, 103, 0, 1, 2, 3]
    assert train["features"].shape == (8, 4, 6, 3)
    assert train["features"].dtype == np.uint8
    assert train["weight"].tolist() == [1] * 8
    assert (test["label"].tolist(), test["features"][:, 3, 5, 2].tolist()) == (
        [1] * 4,
        [200, 201, 202, 203],
    )


@pytest.mark.parametrize(("antialias", "expected"), [(False, 127.5), (True, 63.75)])
def test_antialias_averages_pixels(tmp_path: Path, antialias: bool, expected: float) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    image[3:5, 3:5] = 255  # what bilinear sampling sees at the center, and averaging does not
    for name in ("train", "test"):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / "0.png").write_bytes(tf.io.encode_png(image).numpy())
    data = image_folder(path=str(tmp_path), image_size=[1, 1], antialias=antialias)
    value = int(all_of(data.train)["features"][0, 0, 0, 0])
    assert value > expected if not antialias else value < expected


def test_hidden_loose_and_other_files_are_ignored(
    tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (
        "train/notes.txt",
        "train/loose.png",
        "train/cat/._0.png",
        "train/cat/labels.csv",
        "train/cat/0.webp",
        "train/cat/more/0.png",
        "train/.cache/x.png",
    ):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("x")
    assert image_folder(path=str(tree), image_size=SIZE).train.num_examples == 8
    (line,) = caplog.messages
    assert "8 images are used, others are not: 1 .webp, 1 in folders of a class, 1 loose;" in line


def test_image_folder_refuses_other_layouts(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path \(no/such\): no such.*<class>/<name>\.jpg"):
        image_folder(path="no/such")
    with pytest.raises(ValueError, match=r"holds no folder; it must hold <class>"):
        image_folder(path=str(tmp_path))
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match=r"has test/ but no train/"):
        image_folder(path=str(tmp_path))
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"path \(.*train/cat\) holds no.*\.gif; put images"):
        image_folder(path=str(tmp_path))
    write(tmp_path / "train" / "cat" / "0.png", 0)
    write(tmp_path / "test" / "dog" / "0.png", 0)
    with pytest.raises(ValueError, match=r"path \(.*test\) has the.*not in .*train; rename"):
        image_folder(path=str(tmp_path))
