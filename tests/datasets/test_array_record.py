"""ArrayRecord files, written by the library itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.support.toy_sources import everything, png
from trainer.datasets.array_record import array_record, example
from trainer.datasets.records.fields import Fields

pytest.importorskip("array_record")


def write(path: Path, records: Sequence[bytes]) -> Path:
    from array_record.python.array_record_module import ArrayRecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def serialized(number: int) -> bytes:
    train = tf.train
    feature = {
        "image": train.Feature(bytes_list=train.BytesList(value=[png(number)])),
        "label": train.Feature(int64_list=train.Int64List(value=[number % 3])),
        "vector": train.Feature(float_list=train.FloatList(value=[number, 0.5])),
    }
    content: bytes = train.Example(features=train.Features(feature=feature)).SerializeToString()
    return content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of eight records, and one of none."""
    root = tmp_path_factory.mktemp("records")
    write(root / "a.array_record-00000-of-00003", [serialized(n) for n in range(8)])
    write(root / "a.array_record-00001-of-00003", [])
    write(root / "a.array_record-00002-of-00003", [serialized(n) for n in range(8, 16)])
    (root / "notes.txt").write_text("no records")
    return root


def test_a_function_of_ones_own_reads_records(tmp_path: Path) -> None:
    file = write(tmp_path / "a.array_record", [bytes([number, 1]) for number in range(40)])

    def parse(content: bytes) -> Any:
        return [float(content[0])], content[1]

    data = array_record(path=str(file), parse=parse, fields=Fields(num_classes=2))
    assert data.input_shape == (1,)
    with pytest.raises(ValueError, match=r"no tf.train.Example; name a function .* dataset.parse"):
        example(b"\x01\x02\x03")


def test_damaged_and_missing_files_are_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no .array_record or .arrayrecord file in it"):
        array_record(path=str(tmp_path))
    content = (folder / "a.array_record-00000-of-00003").read_bytes()
    cut = tmp_path / "cut.array_record"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"cut.array_record cannot be read .*cut short"):
        array_record(path=str(cut))


def test_a_damaged_record_is_named_with_its_file(tmp_path: Path) -> None:
    good = write(tmp_path / "a.array_record", [serialized(n) for n in range(8)])
    content = bytearray(good.read_bytes())
    content[content.rindex(b"PNG")] ^= 1
    good.write_bytes(content)
    fields = Fields(num_classes=3)
    data = array_record(path=str(good), test_path=str(good), fields=fields)
    with pytest.raises((ValueError, tf.errors.OpError), match=r"record \d .*a.array_record is dam"):
        everything(data.train)
