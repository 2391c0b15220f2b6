"""What all formats of files have in common: the contract, splits, the cache, damaged examples."""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.dataset_contract import check_dataset
from tests.support.records import example, vector_records
from tests.support.records import write as write_records
from tests.support.toy_sources import everything, png
from trainer.datasets.array_record import array_record
from trainer.datasets.huggingface import huggingface
from trainer.datasets.image_folder import image_folder
from trainer.datasets.image_masks import image_masks
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.records.fields import Fields
from trainer.datasets.table import table
from trainer.datasets.text import text
from trainer.datasets.tfrecord import open_index, tfrecord
from trainer.optional_packages import import_extra

SIZE = [4, 6]


class Format(NamedTuple):
    """A format, with numbered examples.

    Attributes:
        write: writes the examples of some numbers into a folder.
        read: opens a folder.
        numbers: returns the numbers of the examples in a batch.
        tested: what a `test_fraction` of 0.3 takes of the numbers 0 to 39.
    """

    write: Callable[[Path, Sequence[int]], object]
    read: Callable[..., Any]
    numbers: Callable[[dict[str, np.ndarray]], Sequence[int]]
    tested: list[int]


def image(number):
    return png(number, SIZE, 3)


def write_folder(root, numbers):
    for number in numbers:
        file = root / "ab"[number % 2] / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image(number))


def write_masks(root, numbers):
    for folder, value in (("images", None), ("masks", 1)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            content = image(number) if value is None else png(value, SIZE)
            (root / folder / f"{number:02d}.png").write_bytes(content)


def write_images(root, numbers):
    records = [example(image=image(number), label=number % 2) for number in numbers]
    write_records(root / f"{numbers[0]}.tfrecord", records)


def write_vectors(root, numbers):
    write_records(root / f"{numbers[0]}.tfrecord", vector_records(len(numbers), numbers[0]))


def write_array_records(root, numbers):
    module = pytest.importorskip("array_record.python.array_record_module")
    root.mkdir(parents=True, exist_ok=True)
    writer = module.ArrayRecordWriter(str(root / f"{numbers[0]}.array_record"), "group_size:1")
    for number in numbers:
        writer.write(example(image=image(number), label=number % 2))
    writer.close()


def hugging_face_library():
    try:
        library = import_extra("datasets", "huggingface", "dataset=huggingface")
    except ValueError as error:
        pytest.skip(str(error))
    library.disable_progress_bars()
    return library


def hugging_face_images(numbers):
    """Return a data set of Hugging Face: images of one color with labels."""
    library = hugging_face_library()
    columns = {
        "image": [{"bytes": image(number), "path": None} for number in numbers],
        "label": [number % 2 for number in numbers],
    }
    label = library.ClassLabel(names=["even", "odd"])
    features = library.Features({"image": library.Image(), "label": label})
    return library.Dataset.from_dict(columns, features=features)


def write_parquet(root, numbers):
    root.mkdir(parents=True, exist_ok=True)
    hugging_face_images(numbers).to_parquet(str(root / f"{numbers[0]}.parquet"))


def write_table(root, numbers):
    root.mkdir(parents=True, exist_ok=True)
    lines = ["x,label", *(f"{number % 3},{number}" for number in numbers)]
    (root / f"{numbers[0]}.csv").write_text("\n".join(lines))


def write_texts(root, numbers):
    root.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"text": f"{number}", "label": number % 2}) for number in numbers]
    (root / f"{numbers[0]}.jsonl").write_text("\n".join(rows))


def read_table(path, **options):
    data = table(path=path, label_kind="number", **options)
    data.fit()
    return data


def read_with(function, **fixed):
    return lambda path, **options: function(path=path, **fixed, **options)


def color(batch):
    return batch["features"][:, 0, 0, 0].tolist()


def words(batch):
    return [int(bytes((row[row > 0] - 1).tolist())) for row in batch["features"]]


IMAGES = {"image": "image", "label": "int"}
VECTORS = {"x": {"kind": "float", "shape": [2]}, "y": "int"}
FORMATS = {
    "image_folder": Format(
        write_folder,
        read_with(image_folder, image_size=SIZE),
        color,
        [3, 4, 7, 20, 21, 23, 25, 28, 29, 31, 37, 39],
    ),
    "image_masks": Format(
        write_masks,
        read_with(image_masks, image_size=SIZE, class_names=["a", "b"]),
        color,
        [0, 1, 2, 3, 4, 6, 14, 16, 18, 21, 26, 33, 34, 38],
    ),
    "images": Format(
        write_images,
        read_with(tfrecord, features=IMAGES, num_classes=2),
        color,
        [13, 20, 21, 22, 25, 26, 29, 31, 32, 33, 36],
    ),
    "vectors": Format(
        write_vectors,
        read_with(tfrecord, features=VECTORS, label="y", num_classes=2),
        lambda batch: batch["features"][:, 0].tolist(),
        [13, 20, 21, 22, 25, 26, 29, 31, 32, 33, 36],
    ),
    "array_record": Format(
        write_array_records,
        read_with(array_record, fields=Fields(num_classes=2)),
        color,
        [9, 16, 21, 22, 24, 25, 26, 29, 35],
    ),
    "parquet": Format(write_parquet, huggingface, color, [9, 16, 21, 22, 24, 25, 26, 29, 35]),
    "table": Format(
        write_table,
        read_table,
        lambda batch: batch["label"][:, 0].tolist(),
        [4, 5, 15, 16, 18, 19, 21, 25, 36],
    ),
    "text": Format(write_texts, read_with(text, length=8), words, [2, 5, 6, 7, 22, 26, 30, 33]),
}
OF_IMAGES = ["image_folder", "image_masks", "images", "array_record", "parquet"]


def numbers_of(form, split):
    return sorted(map(int, form.numbers(everything(split))))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_format_keeps_the_contract(name, tmp_path):
    form = FORMATS[name]
    form.write(tmp_path / "data" / "train", range(12))
    form.write(tmp_path / "data" / "test", range(12, 20))
    changes = {"augment": Augmentation(flip=True, min_area=0.3)} if name in OF_IMAGES else {}
    if name == "image_masks":
        changes = {"augment": Augmentation(flip=True, crop=1)}
    data = form.read(path=str(tmp_path / "data"), **changes)
    check_dataset(data)
    assert data.train.in_memory == (name in ("table", "text"))
    assert numbers_of(form, data.train) == list(range(12))
    assert numbers_of(form, data.test) == list(range(12, 20))
    batch = everything(data.train)
    if name not in ("image_masks", "table"):
        assert [int(label) for label in batch["label"]] == [n % 2 for n in form.numbers(batch)]


@pytest.mark.parametrize("name", FORMATS)
def test_folders_are_the_splits_and_files_of_validation_are_not_tested_on(name, tmp_path):
    form, root = FORMATS[name], tmp_path / "data"
    form.write(root / "train", range(6))
    form.write(root / "val", range(6, 10))
    data = form.read(path=str(root))
    assert (numbers_of(form, data.validation), data.test.num_examples) == ([6, 7, 8, 9], 0)
    form.write(root / "test", range(10, 12))
    data = form.read(path=str(root))
    found = [numbers_of(form, split) for split in (data.train, data.validation, data.test)]
    assert found == [[*range(6)], [*range(6, 10)], [10, 11]]


@pytest.mark.parametrize("name", FORMATS)
def test_hash_that_no_added_file_changes_chooses_what_is_tested(name, tmp_path):
    form, root = FORMATS[name], tmp_path / "data"
    form.write(root, range(40))
    data = form.read(path=str(root), test_fraction=0.3)
    tested = numbers_of(form, data.test)
    assert sorted(tested + numbers_of(form, data.train)) == list(range(40))
    # A change would mix the splits of every user.
    assert tested == form.tested
    form.write(root, range(100, 160))
    more = form.read(path=str(root), test_fraction=0.3)
    later = numbers_of(form, more.test)
    assert [number for number in later if number < 40] == tested
    assert 5 < len(later) - len(tested) < 30


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_IMAGES)
def test_cached_examples_have_the_same_bits(name, tmp_path):
    form = FORMATS[name]
    for split in ("train", "test"):
        form.write(tmp_path / "data" / split, range(6))
    plain, *cached = (
        form.read(path=str(tmp_path / "data"), crop=0.75, cache=cache)
        for cache in ("none", "disk", "disk")
    )
    expected = everything(plain.train)
    for data in cached:
        for _ in range(2):
            found = everything(data.train)
            assert found.keys() == expected.keys()
            for key, values in expected.items():
                assert found[key].dtype == values.dtype
                np.testing.assert_array_equal(found[key], values)


BROKEN = (0, 1, 3, 6)


def damage_file(root, number):
    (file,) = root.rglob(f"{number:02d}.png")
    content = file.read_bytes()
    half = content[: len(content) // 2]
    file.write_bytes({0: b"", 1: b"no image at all", 3: half, 6: half}[number])
    return str(file)


def damage_mask(root, number):
    file = root / "masks" / f"{number:02d}.png"
    if number < 2:  # a class that is unknown; another size than the image's
        file.write_bytes(png(2 - number, [6, 4] if number else SIZE))
    else:  # a palette; fewer bits
        Image.open(file).convert("P" if number == 3 else "1").save(file)
    return f"{root / 'images' / file.name} with its mask"


def damage_record(root, number):
    file = root / "0.tfrecord"
    offset = int(open_index([file]).offsets[number])
    content = bytearray(file.read_bytes())
    content[offset + 20] ^= 0xFF
    file.write_bytes(content)
    return f"offset {offset} of {file}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"),
    [("image_folder", damage_file), ("image_masks", damage_mask), ("images", damage_record)],
)
def test_damaged_examples_have_no_weight_up_to_a_limit_and_change_no_other(
    name, damage, tmp_path, caplog
):
    form, root = FORMATS[name], tmp_path / "data"
    for split in ("train", "test"):
        form.write(root / split, range(8))

    def train(limit):
        return form.read(path=str(root), max_corrupt_records=limit).train

    intact = everything(train(0))
    numbers = form.numbers(intact)
    places = [damage(root / "train", number) for number in BROKEN]
    split = train(4)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            batch = everything(split)
    is_whole = np.array([number not in BROKEN for number in numbers])
    np.testing.assert_array_equal(batch["weight"], is_whole)
    assert not batch["features"][~is_whole].any()
    for key, values in intact.items():
        np.testing.assert_array_equal(batch[key][is_whole], values[is_whole])
    for count, line in enumerate(caplog.messages, 1):
        assert f"{count} of at most 4" in line
        assert [place for place in places if place in line]
    assert len(caplog.messages) == 4
    with pytest.raises(ValueError, match=r"3 others .*dataset\.max_corrupt_records=4"):
        everything(train(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_corrupt_records=1"):
        list(tf.data.Dataset.range(8).batch(4).map(train(0).fetch))
