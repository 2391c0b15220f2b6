from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.mnist import mnist


def archive(path: Path, **changes: Any) -> str:
    random = np.random.RandomState(0)
    arrays = {
        "x_train": random.randint(0, 256, (20, 28, 28), np.uint8),
        "y_train": np.arange(20, dtype=np.uint8) % 10,
        "x_test": random.randint(0, 256, (10, 28, 28), np.uint8),
        "y_test": np.arange(10, dtype=np.uint8),
    }
    np.savez(
        path, **{key: value for key, value in {**arrays, **changes}.items() if value is not None}
    )
    return str(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, r"lacks the keys \['y_test'\], it has.*'x_train', .*; needed"),
        ({"x_test": np.zeros((10, 32, 32), np.uint8)}, r"x_test and y_test:.*\[N, 28, 28\] uint8"),
        ({"y_train": np.full(20, 10)}, r"x_train and y_train: labels go.*they must be in 0\.\.9"),
    ],
)
def test_mnist_refuses_other_archives(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mnist(path=archive(tmp_path / "a.npz", **changes))


def test_download_appears_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "datasets" / "mnist.npz"
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    def download(path: str) -> None:
        assert not cached.exists()
        archive(Path(path))

    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", download)
    assert mnist().train.num_examples == 20
    assert list(cached.parent.iterdir()) == [cached]
    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", lambda path: pytest.fail("downloads"))
    assert mnist().train.num_examples == 20


def test_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    def download(path: str) -> None:
        raise Exception("URL fetch failure\non two lines")  # as Keras does

    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", download)
    message = (
        r"MNIST is not at .*mnist\.npz and cannot be downloaded \(URL fetch failure\); "
        r"give dataset\.path=<mnist\.npz>$"
    )
    with pytest.raises(FileNotFoundError, match=message):
        mnist()
