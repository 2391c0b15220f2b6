import hashlib
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets import cifar10 as cifar10_module
from trainer.datasets.cifar10 import TEST_FILE, TRAIN_FILES, cifar10

PER_FILE = 4


def batch(number: int) -> dict[bytes, Any]:
    rows = np.random.RandomState(number).randint(0, 256, (PER_FILE, 3072), np.uint8)
    return {
        b"batch_label": b"fake",
        b"labels": [(number + i) % 10 for i in range(PER_FILE)],
        b"data": rows,
        b"filenames": [b"x.png"] * PER_FILE,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small data set in the official layout."""
    path = tmp_path / "cifar-10-batches-py"
    path.mkdir()
    for number, name in enumerate((*TRAIN_FILES, TEST_FILE)):
        (path / name).write_bytes(pickle.dumps(batch(number), protocol=2))
    (path / "batches.meta").write_bytes(pickle.dumps({b"label_names": []}, protocol=2))
    return path


def check(path: Path) -> None:
    data = cifar10(path=str(path))
    assert (data.train.num_examples, data.test.num_examples) == (5 * PER_FILE, PER_FILE)
    assert (data.input_shape, data.num_classes) == ((32, 32, 3), 10)
    fetched = data.train.fetch(tf.range(5 * PER_FILE, dtype=tf.int64))
    assert fetched["label"].numpy().tolist() == [
        (number + i) % 10 for number in range(5) for i in range(PER_FILE)
    ]
    # The sixth example is the second of the second file: 1024 values of red, then green, then blue.
    row = batch(1)[b"data"][1]
    image = fetched["features"][PER_FILE + 1].numpy()
    assert (image[0, 0].tolist(), image[0, 1].tolist(), image[31, 31].tolist()) == tuple(
        row[i::1024].tolist() for i in (0, 1, 1023)
    )
    np.testing.assert_array_equal(
        data.test.fetch(tf.constant([0], tf.int64))["features"][0, :, :, 2].numpy().ravel(),
        batch(5)[b"data"][0, 2048:],
    )


def pack(folder: Path, archive: Path) -> Path:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


def test_folder_and_archive_are_read_and_what_is_missing_is_named(folder: Path) -> None:
    check(folder)
    check(pack(folder, folder.parent / "cifar-10-python.tar.gz"))
    (folder / "data_batch_2").unlink()
    with pytest.raises(FileNotFoundError, match=r"-py\) lacks data_batch_2; it must be the folder"):
        cifar10(path=str(folder))
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10 is not at no/where; give dataset.path="):
        cifar10(path="no/where")


def test_decode_reads_pickles_of_python_2_and_numpy_1() -> None:
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

    def __init__(self, victim: Path):
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


def test_malicious_pickle_is_refused_and_not_run(folder: Path) -> None:
    victim = folder.parent / "victim"
    (folder / "data_batch_3").write_bytes(
        pickle.dumps({b"data": Malicious(victim), b"labels": []}, protocol=2)
    )
    with pytest.raises(ValueError, match=r"data_batch_3 is not a batch of.*asks for posix\.mkdir"):
        cifar10(path=str(folder))
    assert not victim.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "EOFError"),
        (pickle.dumps({b"labels": []}), "KeyError: b'data'"),
        (
            pickle.dumps({b"data": np.zeros((2, 30), np.uint8), b"labels": [0, 1]}),
            r"\[2, 30\] uint8",
        ),
        (
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}),
            "from 0 to 10",
        ),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.",
            "encoding zlib",
        ),
    ],
)
def test_other_contents_are_refused(folder: Path, content: bytes, message: str) -> None:
    (folder / TEST_FILE).write_bytes(content)
    with pytest.raises(ValueError, match=f"test_batch.*{message}") as caught:
        cifar10(path=str(folder))
    assert "\n" not in str(caught.value)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keras' folder of data sets, which does not exist yet."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    return tmp_path / "keras" / "datasets"


@pytest.mark.parametrize("name", ["cifar-10-batches-py.tar.gz", "cifar-10-python.tar.gz"])
def test_archive_in_the_keras_cache_is_found(
    folder: Path, cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack(folder, cache / name)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar10_module, "SHA256", digest)
    assert cifar10().train.num_examples == 5 * PER_FILE


def test_empty_keras_cache_error_names_the_download(cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none of .*; put https://.*\.tar\.gz .* there"):
        cifar10()


def test_archive_in_the_keras_cache_must_have_the_published_checksum(
    folder: Path, cache: Path
) -> None:
    archive = pack(folder, cache / "cifar-10-batches-py.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    with pytest.raises(
        ValueError,
        match=rf"is damaged: its SHA-256 is {digest}, that of https://.* is 6d95.*; download it ag",
    ):
        cifar10()


def test_truncated_archive_is_refused(folder: Path) -> None:
    archive = pack(folder, folder.parent / "cifar-10-python.tar.gz")
    os.truncate(archive, 2000)
    with pytest.raises(ValueError, match=r"cannot be read as a tar archive: .*of .* cut short"):
        cifar10(path=str(archive))
