import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.support.records import vector_records, write
from trainer.datasets.records import tfrecord_files
from trainer.datasets.records.tfrecord_files import open_index


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tfrecord_files, "FOLDER", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "data" / "a.tfrecord", vector_records(5000))


def test_index_has_every_record_once_and_is_kept_in_the_cache(file: Path, cache: Path) -> None:
    index = open_index([file, file])
    assert index.counts.tolist() == [5000, 5000]
    lengths = [len(record) + 16 for record in vector_records(5000)]
    assert index.offsets[:5000].tolist() == [0, *np.cumsum(lengths)[:-1]]
    assert np.array_equal(index.offsets[:5000], index.offsets[5000:])
    assert len(list(cache.glob("records-*.npz"))) == len(list(file.parent.iterdir())) == 1


def test_index_is_made_anew_when_it_or_a_file_changes(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_index([file])
    write(file, vector_records(5001))
    assert len(open_index([file])) == 5001
    (kept,) = cache.iterdir()
    kept.write_bytes(b"damaged")
    assert len(open_index([file])) == 5001
    monkeypatch.setattr(tfrecord_files, "_scan", None)
    assert len(open_index([file])) == 5001


def test_compressed_files_are_refused_with_the_way_out(tmp_path: Path) -> None:
    packed = write(tmp_path / "a.tfrecord", vector_records(3), "GZIP")
    with pytest.raises(ValueError, match=r"is compressed \(GZIP\).*decompress it, with gunzip"):
        open_index([packed])
    packed.write_bytes(gzip.decompress(packed.read_bytes()))
    assert len(open_index([packed])) == 3
    with pytest.raises(ValueError, match=r"is compressed \(ZLIB\)"):
        open_index([write(tmp_path / "b.tfrecord", vector_records(3), "ZLIB")])


def test_damaged_length_is_named_with_its_offset(file: Path) -> None:
    for number in (4500, 4999):
        offset = int(open_index([file]).offsets[number])
        content = file.read_bytes()
        file.write_bytes(content[: offset + 2] + b"\x01" + content[offset + 3 :])
        with pytest.raises(ValueError, match=f"{file} is damaged at offset {offset}: the length"):
            open_index([file])
        file.write_bytes(content)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content, problem in (("no records at all", "no TFRecord file"), ("x", "no TFRecord")):
        (other := tmp_path / "a.tfrecord").write_text(content)
        with pytest.raises(ValueError, match=problem):
            open_index([other])
    other.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        open_index([other])
