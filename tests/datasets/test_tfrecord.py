"""Records of TFRecord files: their features, damage, and the index."""

import gzip
import logging

import numpy as np
import pytest

from tests.support.dataset_contract import arrays
from tests.support.records import example, image_records, vector_records, write
from tests.support.toy_sources import everything
from trainer.datasets import tfrecord as tfrecord_module
from trainer.datasets.tfrecord import RecordIndex, open_index, tfrecord
from trainer.engine.graph.asynchronous.remote_input import RemoteFeed
from trainer.engine.graph.input.feed import SampleOrder, Source

IMAGE = {"image": "image", "label": "int"}
VECTOR = {"x": {"kind": "float", "shape": [2]}, "y": "int"}


@pytest.fixture
def images(tmp_path):
    """Return a folder of three files of images, of which one is for testing."""
    write(tmp_path / "images" / "train-00000-of-00002", image_records(7))
    write(tmp_path / "images" / "train-00001-of-00002", image_records(4, 7))
    write(tmp_path / "images" / "test-00000-of-00001", image_records(5, 100))
    return tmp_path / "images"


@pytest.fixture
def vectors(tmp_path):
    """Return a file of 40 vectors."""
    return write(tmp_path / "vectors.tfrecord", vector_records(40))


def open_images(folder, **options):
    options = {"image_size": [4, 6], "num_classes": 3, "features": IMAGE, **options}
    return tfrecord(path=str(folder), **options)


def open_vectors(file, **options):
    options = {"features": VECTOR, "label": "y", "num_classes": 2, **options}
    return tfrecord(path=str(file), test_path=str(file), **options)


def test_lists_of_any_length_are_cut_and_filled(tmp_path):
    lists = [[1], [2, 3, 4, 5], [6, 7]]
    records = [example(ids=ids, y=0) for ids in lists] + [example(y=1)]
    features = {"ids": {"kind": "int", "max_length": 3, "default": -1}, "y": "int"}
    data = open_vectors(write(tmp_path / "a.tfrecord", records), features=features)
    assert everything(data.train)["features"].tolist() == [
        [1, -1, -1], [2, 3, 4], [6, 7, -1], [-1, -1, -1],
    ]  # fmt: skip
    assert data.input_shape == (3,)


def test_several_features_are_concatenated(tmp_path):
    pixels = np.arange(4, dtype=np.int16).tobytes()
    file = write(tmp_path / "a.tfrecord", [example(a=0.5, b=[7, 8], c=pixels, y="dog")])
    features = {
        "a": "float",
        "b": {"kind": "int", "shape": [2]},
        "c": {"kind": "raw", "dtype": "int16", "shape": [2, 2]},
        "d": {"kind": "float", "default": 9.0},
        "y": "string",
    }
    data = open_vectors(file, features=features, class_names=["cat", "dog"], num_classes=None)
    batch = everything(data.train)
    assert batch["features"].tolist() == [[0.5, 7, 8, 0, 1, 2, 3, 9]]
    assert (batch["label"].tolist(), data.num_classes, data.input_shape) == ([1], 2, (8,))


@pytest.mark.slow
def test_every_kind_of_damage_is_named(tmp_path, caplog):
    records = image_records(6)
    records[1] = example(image=b"no image", label=0)
    records[2] = example(label=0)
    records[3] = example(image=records[3], label=7)
    records[4] = b"\xff\xff"
    file = write(tmp_path / "a.tfrecord", records)
    file.write_bytes(file.read_bytes()[:-30])
    data = open_images(file, test_path=str(file), max_corrupt_records=5)
    with caplog.at_level(logging.WARNING):
        assert everything(data.train)["weight"].tolist() == [1, 0, 0, 0, 0, 0]
    reasons = [
        "no JPEG",
        "Feature: image",
        "not one of the classes",
        "tf.train.Example",
        "cut short",
    ]
    for reason, line in zip(reasons, caplog.messages, strict=True):
        assert reason in line


HAS = r"the first record of .*train-00000-of-00002 has image: bytes \(PNG\), label: int"


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            None,
            rf"features \(null\) must declare .*; {HAS}; add .dataset\.features={{image: image, la",
        ),
        ({"pixels": "image"}, f"features: Feature: pixels .* could not be found; {HAS}"),
    ],
)
def test_features_that_records_do_not_have_are_refused(images, features, message):
    with pytest.raises(ValueError, match=message):
        open_images(images, features=features and {"label": "int", **features})


def test_workers_without_python_can_read_records(images):
    split = open_images(images, max_corrupt_records=1).train
    source = Source(split, 4, 1, SampleOrder(11, 0))
    # A ConfigError, if any value of the batch came from Python.
    assert RemoteFeed(source, lambda tensors: tensors).fetches is False


def test_fetch_reads_the_asked_records_alone_among_ten_million(vectors):
    train = open_vectors(vectors).train
    # Everywhere else there is nothing to read: what is read in vain would be an error.
    offsets = np.full(10_000_000, 2**62)
    offsets[-40:] = train.index.offsets
    split = type(train)(
        RecordIndex(train.index.files, np.array([len(offsets)]), offsets),
        train.features, None, framing=train._framing, corrupt=train._corrupt,
    )  # fmt: skip
    batch = arrays(split, 10_000_000 - 40 + np.array([3, 39]))
    assert batch["features"][:, 0].tolist() == [3, 39]


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "data" / "a.tfrecord", vector_records(5000))


def test_index_has_every_record_once_and_is_kept_until_it_or_a_file_changes(
    file, home, monkeypatch
):
    index = open_index([file, file])
    assert index.counts.tolist() == [5000, 5000]
    lengths = [len(record) + 16 for record in vector_records(5000)]
    assert index.offsets[:5000].tolist() == [0, *np.cumsum(lengths)[:-1]]
    assert np.array_equal(index.offsets[:5000], index.offsets[5000:])
    (kept,) = (home / ".cache" / "steadfast").glob("records-*.npz")
    write(file, vector_records(5001))
    assert len(open_index([file])) == 5001
    kept.unlink()
    (kept,) = kept.parent.iterdir()
    kept.write_bytes(b"damaged")
    assert len(open_index([file])) == 5001
    monkeypatch.setattr(tfrecord_module, "_scan", None)
    assert len(open_index([file])) == 5001


def test_compressed_files_are_refused_with_the_way_out(tmp_path):
    packed = write(tmp_path / "a.tfrecord", vector_records(3), "GZIP")
    with pytest.raises(ValueError, match=r"is compressed \(GZIP\).*decompress it, with gunzip"):
        open_index([packed])
    packed.write_bytes(gzip.decompress(packed.read_bytes()))
    assert len(open_index([packed])) == 3
    with pytest.raises(ValueError, match=r"is compressed \(ZLIB\)"):
        open_index([write(tmp_path / "b.tfrecord", vector_records(3), "ZLIB")])
