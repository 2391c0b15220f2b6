"""Hugging Face data sets, written by the library itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.toy_sources import everything
from trainer.datasets.huggingface import huggingface
from trainer.datasets.records.fields import Fields
from trainer.datasets.splits.extras import import_extra


@pytest.fixture(scope="module")
def library() -> Any:
    try:
        module = import_extra("datasets", "huggingface", "dataset=huggingface")
    except ValueError as error:
        pytest.skip(str(error))
    module.disable_progress_bars()
    return module


@pytest.fixture(scope="module")
def images(library: Any) -> Any:
    """Twelve images of one color."""
    from PIL import Image

    features = library.Features(
        {
            "image": library.Image(),
            "label": library.ClassLabel(names=["cat", "dog"]),
            "note": library.Value("string"),
        }
    )
    columns = {
        "image": [Image.fromarray(np.full((4, 4), number, np.uint8)) for number in range(12)],
        "label": [number % 2 for number in range(12)],
        "note": [str(number) for number in range(12)],
    }
    return library.Dataset.from_dict(columns, features=features)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["", "*.arrow"])
def test_images_are_read_and_classes_named(images: Any, tmp_path: Path, pattern: str) -> None:
    images.save_to_disk(str(tmp_path / "folder"))
    path = tmp_path / "folder" / pattern
    data = huggingface(path=str(path), test_path=str(path), crop=0.875, cache="disk")
    assert (data.input_shape, data.num_classes) == ((4, 4, 1), 2)
    assert data.class_names == ["cat", "dog"]
    batch = everything(data.train)
    assert batch["features"][:, 0, 0, 0].tolist() == list(range(12))
    assert batch["label"].tolist() == [0, 1] * 6


def test_splits_of_one_folder(library: Any, images: Any, tmp_path: Path) -> None:
    parts = library.DatasetDict(train=images.select(range(4, 12)), test=images.select(range(4)))
    parts.save_to_disk(str(tmp_path / "d"))
    data = huggingface(path=str(tmp_path / "d"))
    assert everything(data.train)["features"][:, 0, 0, 0].tolist() == list(range(4, 12))
    assert data.test.num_examples == 4
    with pytest.raises(ValueError, match=r"test \(valid\): .* no such split, it has train, test"):
        huggingface(path=str(tmp_path / "d"), test="valid")


def test_vectors(library: Any, tmp_path: Path) -> None:
    columns = {"x": [[float(n), 0.5] for n in range(9)], "y": list(range(9))}
    library.Dataset.from_dict(columns).save_to_disk(str(tmp_path / "v"))
    path = str(tmp_path / "v")
    data = huggingface(path=path, test_path=path, fields=Fields(num_classes=9))
    assert data.input_shape == (2,)
    assert everything(data.train)["features"][:, 0].tolist() == list(range(9))
    with pytest.raises(ValueError, match=r"fields.features \(z\): .* it has x, y"):
        huggingface(path=path, fields=Fields(features="z", num_classes=9))


def test_damaged_and_missing_files_are_named(images: Any, tmp_path: Path) -> None:
    images.to_parquet(str(tmp_path / "a.parquet"))
    os.truncate(tmp_path / "a.parquet", 200)
    with pytest.raises(ValueError, match=r"a.parquet cannot be read: .*; was it cut short\?"):
        huggingface(path=str(tmp_path / "a.parquet"))
