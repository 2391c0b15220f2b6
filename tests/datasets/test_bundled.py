"""Datasets of the project: toy sets and tables, which need no files, MNIST and CIFAR-10."""

import hashlib
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import check_dataset
from tests.support.toy_sources import everything
from trainer.datasets import cifar10 as cifar10_module
from trainer.datasets.breast_cancer import breast_cancer
from trainer.datasets.cifar10 import TEST_FILE, TRAIN_FILES, cifar10
from trainer.datasets.diabetes import diabetes
from trainer.datasets.digits import digits
from trainer.datasets.mnist import mnist
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.sentences import sentences
from trainer.datasets.shapes import shapes
from trainer.datasets.synthetic import synthetic

FEW = {"num_examples": 30, "num_test": 8}
ALL_CHANGES = Augmentation(min_area=0.5, flip=True, crop=2, brightness=0.1)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (digits, {}),
        (synthetic, {"augment": ALL_CHANGES, **FEW}),
        (shapes, {"augment": Augmentation(flip=True, crop=2), "image_size": [16, 16], **FEW}),
        (sentences, {"characters": 2000}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_toy_set_keeps_the_contract(make, options):
    check_dataset(make(**options))


def test_digits_contain_every_image_once():
    data = digits()
    assert (data.train.num_examples, data.test.num_examples) == (1437, 360)
    batches = everything(data.train), everything(data.test)
    images, labels = (np.concatenate([x[name] for x in batches]) for name in ("features", "label"))
    assert images.shape == (1797, 8, 8, 1)
    assert (images.dtype, images.max(), int(images.sum())) == (np.uint8, 16, 561718)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_tables_are_whole():
    cancer, diabetic = breast_cancer(), diabetes()
    cancer.fit()
    diabetic.fit()
    labels, targets = (
        np.concatenate([everything(split)["label"] for split in (data.train, data.test)])
        for data in (cancer, diabetic)
    )
    assert cancer.class_names == ["benign", "malignant"]
    assert (cancer.input_shape, labels.shape, labels.sum()) == ((30,), (569,), 212)
    # As Efron et al. (2004) have it.
    assert (targets.shape, targets.min(), targets.max()) == ((442, 1), 25.0, 346.0)
    assert targets.mean() == pytest.approx(152.1335, abs=1e-3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keras' folder of data sets, which does not exist yet."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    return tmp_path / "keras" / "datasets"


def write_mnist(path, **changes):
    arrays = {
        "x_train": np.zeros((20, 28, 28), np.uint8),
        "y_train": np.arange(20, dtype=np.uint8) % 10,
        "x_test": np.zeros((10, 28, 28), np.uint8),
        "y_test": np.arange(10, dtype=np.uint8),
    }
    kept = {key: value for key, value in {**arrays, **changes}.items() if value is not None}
    np.savez(path, **kept)
    return str(path)


def test_download_of_mnist_appears_complete(cache, monkeypatch):
    def download(path):
        assert not (cache / "mnist.npz").exists()
        write_mnist(Path(path))

    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", download)
    assert mnist().train.num_examples == 20
    assert list(cache.iterdir()) == [cache / "mnist.npz"]
    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", None)
    assert mnist().train.num_examples == 20


PER_FILE = 4


def batch(number):
    rows = np.random.RandomState(number).randint(0, 256, (PER_FILE, 3072), np.uint8)
    labels = [(number + i) % 10 for i in range(PER_FILE)]
    return {b"batch_label": b"fake", b"labels": labels, b"data": rows, b"filenames": [b"x.png"] * 4}


@pytest.fixture
def folder(tmp_path):
    """A small CIFAR-10 in the official layout."""
    path = tmp_path / "cifar-10-batches-py"
    path.mkdir()
    for number, name in enumerate((*TRAIN_FILES, TEST_FILE)):
        (path / name).write_bytes(pickle.dumps(batch(number), protocol=4))
    (path / "batches.meta").write_bytes(pickle.dumps({b"label_names": []}, protocol=4))
    return path


def pack(folder, archive):
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


def test_folder_and_archive_are_read_and_what_is_missing_is_named(folder):
    for path in (folder, pack(folder, folder.parent / "cifar-10-python.tar.gz")):
        data = cifar10(path=str(path))
        assert (data.input_shape, data.num_classes) == ((32, 32, 3), 10)
        train, test = everything(data.train), everything(data.test)
        labels = [(number + i) % 10 for number in range(5) for i in range(PER_FILE)]
        assert train["label"].tolist() == labels
        # 1024 values of red, then green, then blue.
        for image, row in (
            (train["features"][PER_FILE + 1], batch(1)[b"data"][1]),
            (test["features"][0], batch(5)[b"data"][0]),
        ):
            np.testing.assert_array_equal(image, row.reshape(3, 32, 32).transpose(1, 2, 0))
    (folder / "data_batch_2").unlink()
    with pytest.raises(FileNotFoundError, match=r"-py\) lacks data_batch_2; it must be the folder"):
        cifar10(path=str(folder))
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10 is not at no/where; give dataset.path="):
        cifar10(path="no/where")


def test_decode_reads_pickles_of_python_2_and_numpy_1():
    # Python 2 wrote bytes as plain strings, and numpy 1 kept `_reconstruct` elsewhere.
    rows = np.arange(3072, dtype=np.uint8)[None]
    content = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00"
        + rows.tobytes()
        + b"tbU\x06labels]K\x07au."
    )
    images, labels = cifar10_module._decode(content, "here")
    assert labels.tolist() == [7]
    np.testing.assert_array_equal(images[0, :, :, 1].ravel(), rows[0, 1024:2048])


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


def test_malicious_pickle_is_refused_and_not_run(folder):
    victim = folder.parent / "victim"
    content = pickle.dumps({b"data": Malicious(victim), b"labels": []}, protocol=4)
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=r"data_batch_3 is not a batch of.*posix\.mkdir"):
        cifar10(path=str(folder))
    assert not victim.exists()


def test_archive_in_the_cache_of_keras_must_have_the_published_checksum(folder, cache, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"none of .*; put https://.*\.tar\.gz .* there"):
        cifar10()
    for name in ("cifar-10-batches-py.tar.gz", "cifar-10-python.tar.gz"):
        archive = pack(folder, cache / name)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        with pytest.raises(ValueError, match=rf"SHA-256 is {digest}, .* is 6d95.*; download it ag"):
            cifar10()
        with monkeypatch.context() as patch:
            patch.setattr(cifar10_module, "SHA256", digest)
            assert cifar10().train.num_examples == 5 * PER_FILE
        archive.unlink()
