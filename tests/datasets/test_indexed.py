"""Records of any object by index."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.dataset_contract import check_dataset
from tests.support.toy_sources import Batches, Records, everything, png
from trainer.datasets.cache import example_cache
from trainer.datasets.images.framing import Framing
from trainer.datasets.images.image_files import decode
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.indexed import indexed
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.records.fields import Fields
from trainer.datasets.splits.arrays import ArrayDataset

COUNT = 8


def dataset(make: Callable[[int], Any], test: Any = None, **fields: Any) -> Any:
    records = [make(number) for number in range(COUNT)]
    return indexed(
        train_source=Records(records),
        test_source=test or Records(records),
        fields=Fields(**{"num_classes": 3, **fields}),
    )


def picture(number: int) -> Image.Image:
    return Image.fromarray(np.full((4, 4), number, np.uint8))


IMAGES: dict[str, Callable[[int], Any]] = {
    "a mapping of arrays": lambda n: {"img": np.full((4, 4, 1), n, np.uint8), "target": n % 3},
    "a tuple": lambda n: (np.full((4, 4, 1), n, np.uint8), np.int32(n % 3)),
    "encoded": lambda n: {"image": png(n), "label": np.array([n % 3])},
    "a picture of Pillow": lambda n: (picture(n), n % 3),
    "as Hugging Face stores images": lambda n: ({"bytes": png(n), "path": None}, n % 3),
}


@pytest.mark.parametrize("make", IMAGES.values(), ids=IMAGES)
def test_images_of_every_kind_become_the_same_examples(make: Callable[[int], Any]) -> None:
    data = dataset(make)
    assert isinstance(data, ImageDataset)
    assert (data.input_shape, data.num_classes, data.train.in_memory) == ((4, 4, 1), 3, False)
    batch = everything(data.train)
    assert batch["features"][:, 3, 3, 0].tolist() == list(range(COUNT))
    assert (batch["features"].dtype, batch["label"].dtype) == (np.uint8, np.int64)
    assert batch["label"].tolist() == [n % 3 for n in range(COUNT)]


def test_encoded_images_are_framed_and_cached_as_those_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_cache, "FOLDER", tmp_path)
    pixels = np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3)
    content = tf.io.encode_png(pixels).numpy()
    records = Records([(content, n % 3) for n in range(COUNT)])
    fields = Fields(num_classes=3, image_size=[4, 4])
    options: dict[str, Any] = {
        "test_source": records,
        "crop": 0.75,
        "antialias": True,
        "fields": fields,
    }
    expected = decode(content, (4, 4, 3), Framing(0.75, antialias=True))
    data = indexed(train_source=records, **options)
    np.testing.assert_array_equal(everything(data.train)["features"][0], expected)
    np.testing.assert_array_equal(data.decode(tf.constant(content)), expected)
    with pytest.raises(ValueError, match=r"cache: train_source \(Records\) does not tell when its"):
        indexed(train_source=records, cache="disk", **options)
    records.identity = lambda: "1"  # type: ignore[attr-defined]
    for _ in range(2):
        cached = indexed(train_source=records, cache="disk", **options)
        for name, values in everything(data.test).items():
            np.testing.assert_array_equal(everything(cached.test)[name], values)
    numbers = Records([([1.0], 0)] * COUNT)
    with pytest.raises(ValueError, match="crop and antialias are for the files of images"):
        indexed(train_source=numbers, test_source=numbers, crop=0.5, fields=Fields(num_classes=1))


def test_dataset_keeps_the_contract() -> None:
    check_dataset(dataset(IMAGES["a tuple"]))


def test_vectors_are_cast_and_normalized() -> None:
    records = [([n, n + 1], n % 2) for n in range(COUNT)]
    data = indexed(
        train_source=Records(records),
        test_source=Records(records),
        fields=Fields(num_classes=2),
        normalize=Normalization(mean=[1.0, 2.0], std=[2.0]),
    )
    assert isinstance(data, ArrayDataset)
    assert data.input_shape == (2,)
    batch = data.transform(data.train.fetch(tf.constant([3], tf.int64)), None)
    assert batch["features"].numpy().tolist() == [[1.0, 1.0]]


def test_images_of_other_sizes_and_colors_are_converted() -> None:
    data = dataset(
        lambda n: {"image": png(n, (4 + n, 6), 3 if n else 1), "label": 0},
        image_size=[5, 7],
        channels=3,
    )
    assert everything(data.train)["features"].shape == (COUNT, 5, 7, 3)
    first = dataset(lambda n: {"image": png(n, (4 + n, 6)), "label": 0})
    assert first.input_shape == (4, 6, 1)
    palette = Image.fromarray(np.full((4, 4, 3), 9, np.uint8)).convert("P")
    assert dataset(lambda n: (palette, 0)).input_shape == (4, 4, 3)


def test_labels_may_be_names() -> None:
    data = dataset(lambda n: (np.zeros(2), "ab"[n % 2]), num_classes=None, class_names=["b", "a"])
    assert (data.num_classes, data.class_names) == (2, ["b", "a"])
    assert everything(data.train)["label"].tolist() == [1, 0] * 4


def test_records_without_label_have_one_class() -> None:
    data = dataset(lambda n: np.full(2, n, np.float32), num_classes=None)
    assert data.num_classes == 1
    assert list(everything(data.train)) == ["features"]


@pytest.mark.parametrize("kind", [Records, Batches])
def test_source_is_called_by_one_thread_at_a_time(kind: type[Records]) -> None:
    source = kind(count=64)
    split = indexed(train_source=source, test_source=source, fields=Fields(num_classes=3)).train
    pipeline = (
        tf.data.Dataset.range(256)
        .map(lambda index: index % 64)
        .batch(4, drop_remainder=True)
        .map(split.fetch, num_parallel_calls=8)
    )
    seen = np.concatenate([batch["features"][:, 0, 0, 0] for batch in pipeline])
    assert seen.tolist() == list(range(64)) * 4


def damaged(number: int) -> dict[str, Any]:
    content = png(number)
    return {"image": content[:20] if number in (2, 5) else content, "label": 0}


def test_damaged_images_are_skipped_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    source = Records([damaged(number) for number in range(COUNT)])

    def split(limit: int) -> Any:
        return indexed(
            train_source=source,
            test_source=source,
            max_corrupt_records=limit,
            fields=Fields(num_classes=1),
        ).train

    with caplog.at_level(logging.WARNING):
        assert everything(split(2))["weight"].tolist() == [1, 1, 0, 1, 1, 0, 1, 1]
    assert "record 2 of train_source" in caplog.text
    with pytest.raises(
        (tf.errors.InvalidArgumentError, ValueError),
        match=r"record 2 of train_source.*dataset\.max_corrupt_records=1",
    ):
        everything(split(0))


class Broken(Records):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise RuntimeError("checksum of block 7 differs")
        return super().__getitem__(index)


class BrokenBatches(Broken):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Broken(), "test_source: record 5 cannot be read: checksum of block 7 differs"),
        (BrokenBatches(), "test_source: record 5 cannot be read: checksum of block 7 differs"),
        (
            Records([(np.zeros((4, 4, 1), np.uint8), 0)] * 2 + [(np.zeros(3, np.uint8), 0)]),
            "record 2 has 3 numbers",
        ),
        (
            Records([(np.zeros((4, 4, 1), np.uint8), 0), (np.zeros((4, 4, 1)), 0)]),
            "record 1 has features of float64, those of record 0 are uint8",
        ),
        (Records([(np.zeros((4, 4, 1), np.uint8), 3)]), r"record 0 has the label 3, .* in 0..2"),
        (Records([(np.zeros((4, 4, 1), np.uint8), 0.5)]), "record 0 has a label of type float"),
        (Records([(np.zeros((4, 4, 1), np.uint8), "a")]), "name the classes with dataset.fields"),
        (Records([(np.zeros((4, 4, 1), np.uint8),)]), "record 0 has no 1"),
    ],
)
def test_a_wrong_record_is_named(source: Records, message: str) -> None:
    data = dataset(IMAGES["a tuple"], test=source)
    with pytest.raises((tf.errors.OpError, ValueError), match=message):
        everything(data.test)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": lambda: Fields(channels=2)}, "must be 1 or 3"),
        ({"fields": lambda: Fields(num_classes=2, class_names=["a"])}, "1 names for 2 classes"),
        ({"train_source": 3}, r"train_source \(int\) has no __len__"),
        ({"train_source": []}, r"train_source \(list\) is empty"),
        ({"train_source": Broken(), "fields": Fields()}, "add dataset.fields.num_classes=<int>"),
        ({"fields": Fields(features="imag", num_classes=3)}, r"no such part, it has image, label"),
        ({"fields": Fields(label=7, num_classes=3)}, r"fields.label \(7\): .* has image, label"),
        ({"train_source": [("text", 1)]}, "record 0 are text or bytes"),
        ({"train_source": [([[1], [1, 2]], 1)]}, "features that are no array"),
        ({"train_source": [(np.zeros(3), 1)], "fields": Fields(shape=[2], num_classes=2)}, "fill"),
        ({"train_source": Records(count=2)}, "test_fraction .* none of the 2 records"),
        (
            {
                "train_source": [(np.zeros(3), 1)] * 99,
                "fields": Fields(num_classes=2),
                "augment": Augmentation(flip=True),
            },
            "augment is for images",
        ),
    ],
)
def test_errors_say_what_to_change(options: dict[str, Any], message: str) -> None:
    options = {"train_source": Records(), "fields": Fields(num_classes=3), **options}
    with pytest.raises(ValueError, match=message):
        indexed(**{key: value() if callable(value) else value for key, value in options.items()})
