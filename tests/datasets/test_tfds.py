"""Data sets of TensorFlow Datasets, prepared by the library itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.toy_sources import everything
from trainer.datasets.cache import example_cache
from trainer.datasets.tfds import tfds


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two splits."""
    library = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")
    library.disable_progress_bar()

    class Toy(library.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = library.core.Version("1.0.0")
        pkg_dir_path = Path()

        def _info(self) -> Any:
            features = {
                "image": library.features.Image(shape=(None, None, 1), encoding_format="png"),
                "label": library.features.ClassLabel(names=["cat", "dog"]),
            }
            return library.core.DatasetInfo(
                builder=self, features=library.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager: Any) -> Any:
            return {"train": self._generate_examples(12), "test": self._generate_examples(4)}

        def _generate_examples(self, count: int = 0) -> Any:
            for number in range(count):
                image = np.full((4, 4, 1), number, np.uint8)
                yield number, {"image": image, "label": number % 2}

    builder = Toy(data_dir=str(tmp_path_factory.mktemp("tfds")), file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_path)


@pytest.mark.slow
def test_splits_classes_and_images(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_cache, "FOLDER", tmp_path)
    data = tfds(path=str(prepared), train="train[:75%]")
    assert (data.input_shape, data.class_names) == ((4, 4, 1), ["cat", "dog"])
    assert (data.train.num_examples, data.test.num_examples) == (9, 4)
    batch = everything(data.test)
    assert sorted(batch["features"][:, 0, 0, 0].tolist()) == [0, 1, 2, 3]
    assert batch["label"].tolist() == (batch["features"][:, 0, 0, 0] % 2).tolist()
    assert batch["features"].dtype == np.uint8
    cached = tfds(path=str(prepared), train="train[:75%]", crop=0.875, cache="disk")
    for split, other in ((data.train, cached.train), (data.test, cached.test)):
        for _ in range(2):
            assert everything(other)["features"].tolist() == everything(split)["features"].tolist()


def test_wrong_folders_splits_and_damage_are_told(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no dataset_info.json; give the folder"):
        tfds(path=str(prepared.parent))
    with pytest.raises(ValueError, match=r"the split valid cannot be opened: .*valid"):
        tfds(path=str(prepared), test="valid")
    broken = Path(shutil.copytree(prepared, tmp_path / "toy" / "1.0.0"))
    for file in broken.glob("toy-train.array_record*"):
        file.unlink()
    with pytest.raises(
        ValueError, match=r"the split train cannot be opened|record 0 cannot be read"
    ):
        tfds(path=str(broken))
