"""Where the records of TFRecord files begin: read from their headers once, then kept in a file.

A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data
(4). The checksums are CRC-32C, rotated by 15 bits plus a constant, as the format defines it.

The index is kept beside the files, or in `~/.cache/steadfast` if that folder cannot be written. It
holds for files of the same names, sizes, times of modification and first bytes; otherwise it is
made anew. Several processes may do so at once: each puts a whole file in place.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.datasets.splits.hashed_split import divide, hash_rows
from trainer.datasets.splits.paths import Paths, find_files, replacing
from trainer.user_cache import FOLDER

HEADER_BYTES = 12
FOOTER_BYTES = 4
_RECORD_NAME = re.compile(r"^[^.].*(\.tfrec(ord)?s?\b|-\d{5}-of-\d{5}$)")
_COMPRESSED = {b"\x1f\x8b": "GZIP", b"\x78\x01": "ZLIB", b"\x78\x9c": "ZLIB", b"\x78\xda": "ZLIB"}
_HEAD_BYTES = 1024  # of each file, in the key of an index
_CHUNK = 4096  # headers whose checksums are checked at a time


@dataclass(frozen=True)
class RecordIndex:
    """Every record of some files, in order.

    Attributes:
        files: the files.
        counts: records of each file, [F] int64.
        offsets: where each record begins in its file, [N] int64.
    """

    files: tuple[Path, ...]
    counts: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets)

    def identity(self) -> str:
        """Return a text that changes with the records, or with the files that hold them."""
        records = hashlib.sha256(self.counts.tobytes() + self.offsets.tobytes()).hexdigest()
        return f"{_key(self.files)} {[str(file.absolute()) for file in self.files]} {records}"

    @property
    def hashes(self) -> np.ndarray:
        """A number in [0, 1) for each record, [N], by the name of its file and its place there."""
        parts = np.split(self.offsets, np.cumsum(self.counts)[:-1])
        files = zip(self.files, parts, strict=True)
        return np.concatenate([hash_rows(file.name, part) for file, part in files])

    def divide(self, test_fraction: float) -> dict[str, RecordIndex]:
        """Return the records to train on, and those to test on.

        A hash of the file's name and the record's number in the file chooses: files that are added
        later move no record.

        Raises:
            ValueError: a split is empty.
        """
        numbers = [hash_rows(file.name, np.arange(count)) for file, count in self._counted]
        hashes = np.concatenate(numbers)
        parts = divide(hashes, test_fraction, "records", f"{self.files[0].parent}")
        return {"train": self.select(parts[0]), "test": self.select(parts[1])}

    def select(self, rows: np.ndarray) -> RecordIndex:
        """Return the records of these numbers, [n] int64, ascending."""
        ends = np.searchsorted(rows, np.cumsum(self.counts))
        return RecordIndex(self.files, np.diff(ends, prepend=0), self.offsets[rows])

    @property
    def _counted(self) -> Iterator[tuple[Path, int]]:
        return zip(self.files, self.counts.tolist(), strict=True)


def find_record_files(path: Paths, key: str) -> list[Path]:
    """Return the TFRecord files of a path; `find_files`.

    In a folder, files count that have `.tfrecord` or `.tfrec` in their names, or end in
    `-00000-of-00010`.
    """
    return find_files(path, (".tfrecord",), key, _RECORD_NAME)


def open_index(files: Sequence[Path]) -> RecordIndex:
    """Return the index of some files: the one that is kept, or a new one, which is then kept.

    Raises:
        ValueError: a file is empty, compressed, damaged or none of TFRecords.
    """
    names = "\n".join(str(file.absolute()) for file in files)
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    places = [
        files[0].parent / f".steadfast-index-{hashlib.sha256(_short(files)).hexdigest()[:16]}.npz",
        FOLDER.expanduser() / f"records-{digest}.npz",
    ]
    key = _key(files)
    for place in places:
        if (index := _load(place, key, files)) is not None:
            return index
    index = build_index(files)
    for place in places:
        with suppress(OSError):
            with replacing(place) as file:
                np.savez(file, key=key, counts=index.counts, offsets=index.offsets)
            break
    return index


def build_index(files: Sequence[Path]) -> RecordIndex:
    """Read the header of every record.

    Raises:
        ValueError: as `open_index`.
    """
    offsets = [_scan(file) for file in files]
    counts = np.array([len(part) for part in offsets], np.int64)
    return RecordIndex(tuple(files), counts, np.concatenate(offsets))


def masked_crc(data: np.ndarray) -> np.ndarray:
    """Return the checksums of rows of bytes, [n, length] uint8, as the format masks them; [n]."""
    crc = np.full(len(data), 0xFFFFFFFF, np.uint32)
    for column in data.T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    crc ^= np.uint32(0xFFFFFFFF)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def _crc_table() -> np.ndarray:
    """Return the table of CRC-32C (Castagnoli et al. 1993) for a byte at a time, [256] uint32."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    return table


_TABLE = _crc_table()


def _scan(file: Path) -> np.ndarray:
    """Return where the records of a file begin, [n] int64.

    What is cut short at the end counts as a record: reading it fails, as for any damaged record.
    """
    size = file.stat().st_size
    if size == 0:
        raise ValueError(f"{file} is empty; remove it, or write it again")
    offsets: list[int] = []
    headers: dict[int, bytes] = {}
    offset = 0
    with file.open("rb") as opened:
        descriptor = opened.fileno()
        while offset < size:
            header = os.pread(descriptor, HEADER_BYTES, offset)
            offsets.append(offset)
            if len(header) < HEADER_BYTES and offset:
                break
            headers[offset] = header
            offset += HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
            if len(headers) == _CHUNK:
                _check(file, headers)
                headers = {}
    _check(file, headers)
    return np.array(offsets, np.int64)


def _check(file: Path, headers: dict[int, bytes]) -> None:
    """Raise if a header has a wrong checksum; `headers`: by their offsets."""
    padded = b"".join(header.ljust(HEADER_BYTES, b"\xff") for header in headers.values())
    whole = np.frombuffer(padded, np.uint8).reshape(-1, HEADER_BYTES)
    stored = np.ascontiguousarray(whole[:, 8:]).view("<u4")[:, 0]
    bad = np.flatnonzero(masked_crc(whole[:, :8]) != stored)
    if not len(bad):
        return
    offset, header = list(headers.items())[bad[0]]
    if offset == 0:
        if kind := _COMPRESSED.get(header[:2]):
            raise ValueError(
                f"{file} is compressed ({kind}), so its records cannot be read by index; "
                f"decompress it{', with gunzip' if kind == 'GZIP' else ''}"
            )
        raise ValueError(f"{file} is no TFRecord file; remove it, or narrow dataset.path")
    raise ValueError(
        f"{file} is damaged at offset {offset}: the header of a record is wrong, so what follows "
        "cannot be found; write the file again"
    )


def _short(files: Sequence[Path]) -> bytes:
    return "\n".join(os.path.relpath(file, files[0].parent) for file in files).encode()


def _key(files: Sequence[Path]) -> str:
    """Return a digest of the names, sizes, times and first bytes of files."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(_HEAD_BYTES))
    return digest.hexdigest()


def _load(place: Path, key: str, files: Sequence[Path]) -> RecordIndex | None:
    """Read an index that was kept; None if there is none for these files."""
    try:
        with np.load(place, allow_pickle=False) as kept:
            if str(kept["key"]) != key:
                return None
            return RecordIndex(tuple(files), kept["counts"], kept["offsets"])
    except Exception:  # whatever is wrong with it, it can be made anew
        return None
