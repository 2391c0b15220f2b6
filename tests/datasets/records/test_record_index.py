import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.support.records import vector_records, write
from trainer.datasets.records import record_index
from trainer.datasets.records.record_index import build_index, masked_crc, open_index


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "a.tfrecord", vector_records(5000))


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob(".steadfast-index-*"))


def test_checksum_is_that_of_the_format() -> None:
    # RFC 3720, appendix B.4: 32 bytes of zeros; masked as the format of records defines it.
    crc = 0x8A9136AA
    expected = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc(np.zeros([2, 32], np.uint8)).tolist() == [expected] * 2


def test_index_has_every_record_once(file: Path) -> None:
    index = build_index([file, file])
    assert index.counts.tolist() == [5000, 5000]
    lengths = [len(record) + 16 for record in vector_records(5000)]
    assert index.offsets[:5000].tolist() == [0, *np.cumsum(lengths)[:-1]]
    assert np.array_equal(index.offsets[:5000], index.offsets[5000:])


def test_index_is_made_anew_when_a_file_changes(file: Path) -> None:
    open_index([file])
    write(file, vector_records(5001))
    assert len(open_index([file])) == 5001
    assert len(kept(file.parent)) == 1
    kept(file.parent)[0].write_bytes(b"damaged")
    assert len(open_index([file])) == 5001
    assert len(build_index([file])) == 5001


def test_index_goes_to_the_cache_if_the_folder_cannot_be_written(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    open_index([file])
    (place,) = kept(file.parent)
    place.unlink()
    place.mkdir()  # an index cannot replace it
    open_index([file])
    monkeypatch.setattr(record_index, "build_index", None)
    assert len(open_index([file])) == 5000
    assert list((tmp_path / "home").rglob("*.npz"))
    assert kept(file.parent) == [place]


def test_compressed_files_are_refused_with_the_way_out(tmp_path: Path) -> None:
    packed = write(tmp_path / "a.tfrecord", vector_records(3), "GZIP")
    with pytest.raises(
        ValueError, match=r"is compressed \(GZIP\).*by index; decompress it, with g"
    ):
        build_index([packed])
    packed.write_bytes(gzip.decompress(packed.read_bytes()))
    assert len(build_index([packed])) == 3
    packed = write(tmp_path / "b.tfrecord", vector_records(3), "ZLIB")
    with pytest.raises(ValueError, match=r"is compressed \(ZLIB\)"):
        build_index([packed])


def test_damaged_header_is_named_with_its_offset(file: Path) -> None:
    offset = int(build_index([file]).offsets[4500])
    content = bytearray(file.read_bytes())
    content[offset + 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"{file} is damaged at offset {offset}: the header"):
        build_index([file])


def test_other_files_are_refused(tmp_path: Path) -> None:
    (other := tmp_path / "a.tfrecord").write_text("no records at all")
    with pytest.raises(ValueError, match="is no TFRecord file"):
        build_index([other])
    other.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        build_index([other])
