"""Data sets of ArrayRecord, TensorFlow Datasets and Hugging Face, written by these libraries."""

from pathlib import Path

import numpy as np
import pytest

from tests.datasets.test_formats import hugging_face_images, hugging_face_library
from tests.support.toy_sources import everything
from trainer.datasets.array_record import array_record, example
from trainer.datasets.huggingface import huggingface
from trainer.datasets.records.fields import Fields
from trainer.datasets.tfds import tfds


def write(path, records):
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def test_a_custom_function_reads_array_records(tmp_path):
    file = write(tmp_path / "a.array_record", [bytes([number, 1]) for number in range(40)])

    def parse(content):
        return [float(content[0])], content[1]

    data = array_record(path=str(file), parse=parse, fields=Fields(num_classes=2))
    assert data.input_shape == (1,)
    with pytest.raises(ValueError, match=r"no tf.train.Example; name a function .* dataset.parse"):
        example(b"\x01\x02\x03")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data set of TensorFlow Datasets, of two splits."""
    library = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")
    library.disable_progress_bar()

    class Toy(library.core.GeneratorBasedBuilder):
        VERSION = library.core.Version("1.0.0")
        pkg_dir_path = Path()

        def _info(self):
            features = {
                "image": library.features.Image(shape=(None, None, 1), encoding_format="png"),
                "label": library.features.ClassLabel(names=["cat", "dog"]),
            }
            return library.core.DatasetInfo(
                builder=self, features=library.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(12), "test": self._generate_examples(4)}

        def _generate_examples(self, count=0):
            for number in range(count):
                image = np.full((4, 4, 1), number, np.uint8)
                yield number, {"image": image, "label": number % 2}

    builder = Toy(data_dir=str(tmp_path_factory.mktemp("tfds")), file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_path)


@pytest.mark.slow
def test_tfds_has_splits_classes_and_images(prepared):
    data = tfds(path=str(prepared), train="train[:75%]")
    assert (data.input_shape, data.class_names) == ((4, 4, 1), ["cat", "dog"])
    assert (data.train.num_examples, data.test.num_examples) == (9, 4)
    batch = everything(data.test)
    assert sorted(batch["features"][:, 0, 0, 0].tolist()) == [0, 1, 2, 3]
    assert batch["label"].tolist() == (batch["features"][:, 0, 0, 0] % 2).tolist()
    assert batch["features"].dtype == np.uint8


def test_huggingface_has_splits_in_one_folder(tmp_path):
    parts = hugging_face_library().DatasetDict(
        train=hugging_face_images(range(4, 12)), test=hugging_face_images(range(4))
    )
    path = str(tmp_path / "d")
    parts.save_to_disk(path)
    data = huggingface(path=path)
    assert everything(data.train)["features"][:, 0, 0, 0].tolist() == list(range(4, 12))
    assert data.test.num_examples == 4
    with pytest.raises(ValueError, match=r"test \(valid\): .* no such split, it has train, test"):
        huggingface(path=path, test="valid")
