"""Memory-mapped arrays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.dataset_contract import check_dataset
from tests.support.toy_sources import everything, write_npy
from trainer.datasets.npy import npy
from trainer.datasets.records.fields import Fields

IMAGES = np.arange(20 * 16, dtype=np.int64).reshape(20, 16).astype(np.uint8)
LABELS = np.arange(20) % 4


def test_arrays_are_mapped_and_reshaped(tmp_path: Path) -> None:
    write_npy(tmp_path, IMAGES, LABELS)
    np.save(tmp_path / "test_features.npy", IMAGES[:5])
    np.save(tmp_path / "test_labels.npy", LABELS[:5])
    data = npy(path=str(tmp_path), fields=Fields(shape=[4, 4, 1]))
    assert (data.input_shape, data.num_classes) == ((4, 4, 1), 4)
    assert (data.train.num_examples, data.test.num_examples) == (20, 5)
    batch = everything(data.train)
    assert batch["features"].reshape(20, 16).tobytes() == IMAGES.tobytes()
    assert batch["label"].tolist() == LABELS.tolist()
    check_dataset(data)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"features.npy\): no such file"):
        npy(path=str(tmp_path))
    write_npy(tmp_path, IMAGES, LABELS[:3])
    with pytest.raises(ValueError, match=r"has 20 examples, .*labels.npy has 3"):
        npy(path=str(tmp_path))
    write_npy(tmp_path, IMAGES, LABELS[:, None, None])
    with pytest.raises(ValueError, match=r"labels are \[20, 1, 1\] int64, they must be \[N\] int"):
        npy(path=str(tmp_path))
    write_npy(tmp_path, IMAGES, LABELS)
    os.truncate(tmp_path / "features.npy", 300)
    with pytest.raises(ValueError, match=r"features.npy\) cannot be read .* was it cut short\?"):
        npy(path=str(tmp_path))
