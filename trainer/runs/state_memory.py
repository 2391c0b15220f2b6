"""The format of a snapshot in memory: the state of one process, which outlives that process.

The memory is an anonymous file (`memfd_create`) that the supervisor owns and its workers map: it
has no name, and is gone when the last of them is. Two slots are written in turns, so a kill in the
middle of a write leaves the snapshot before it:

    magic, bytes of a slot, step reached, slot held | header of slot 0 | header of slot 1
    | slot 0 | slot 1

A header has the number of the write, the step, the last reported step, the length of the two parts
of its slot and their checksums, and its own checksum. The slot has a description of the
tensors (JSON) and their contents. A header is written last. A slot is held while a checkpoint of
its snapshot is being written: then all writes go to the other one. No TensorFlow.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_MAGIC = b"steadfst"
_FILE = struct.Struct("<8sqq")
_REACHED_AT, _HELD_AT = 8, 16
_SLOTS = range(3)
_ROOM = struct.Struct("<qq")
_ROOMS_AT = 64
_SLOT = struct.Struct("<qqqqqIQ")
_CHECK = struct.Struct("<I")
_HEADER_BYTES = 128
_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64  # of each tensor, so that it can be mapped as one
_SPARE_BYTES = 1 << 16  # for a description that grows a little


class Position(NamedTuple):
    """What identifies a state; the larger is the newer.

    Attributes:
        reported: the last step whose evaluation and log lines are complete.
    """

    step: int
    reported: int


class StoredTensor(NamedTuple):
    """One tensor of a snapshot.

    Attributes:
        slice_spec: the slice of it in TensorFlow's notation; '': all.
        dtype: the name of its type; `string`: the content is a serialized tensor.
        content: its bytes, [n] uint8, in memory that must not change while it is read or written.
    """

    key: str
    slice_spec: str
    dtype: str
    shape: Sequence[int]
    content: Any


@dataclass(frozen=True)
class Header:
    """A snapshot that was written whole.

    Attributes:
        checksum: the sum of the contents as 64-bit numbers, modulo 2**64.
    """

    number: int
    position: Position
    description_bytes: int
    content_bytes: int
    description_check: int
    checksum: int
    slot: int


class Held(NamedTuple):
    """A snapshot of which a checkpoint is being written."""

    step: int
    metrics: dict[str, float] | None
    tensors: list[StoredTensor]


class StateMemory:
    """The memory of one process, in the file of a descriptor, which this object closes."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    @property
    def reached(self) -> int:
        """The last step that the process has reported; -1: none."""
        memory = self._mapped()
        return -1 if memory is None else _FILE.unpack_from(memory)[1]

    def note_reached(self, step: int) -> None:
        """Note the number of updates made; before the first write it is not kept."""
        if (memory := self._mapped()) is not None:
            struct.pack_into("<q", memory, _REACHED_AT, step)

    def newest(self) -> Header | None:
        """Return the newest snapshot that was written whole; its tensors are not verified."""
        headers = [header for slot in _SLOTS if (header := self._header(slot))]
        return max(headers, key=lambda header: header.number, default=None)

    def content(self, header: Header) -> Any:
        """Return the bytes of a snapshot, [n] uint8, in the memory itself; empty: it is gone."""
        import numpy as np

        memory = self._mapped()
        if memory is None or self._header(header.slot) != header:
            return np.zeros(0, np.uint8)
        size = _aligned(header.description_bytes) + header.content_bytes
        return np.frombuffer(memory, np.uint8, size, self._room(header.slot)[0])

    def read(self, header: Header) -> list[StoredTensor] | None:
        """Return the tensors of a snapshot, in the memory itself; None: it does not verify."""
        return unpack(header, self.content(header))

    def held(self) -> Held | None:
        """Return the snapshot that is held; None: none is, or it does not verify."""
        memory = self._mapped()
        slot = -1 if memory is None else _FILE.unpack_from(memory)[2]
        header = self._header(slot) if slot >= 0 else None
        if header is None or (tensors := self.read(header)) is None:
            return None
        metrics = _description(header, self.content(header))["metrics"]
        return Held(header.position.step, metrics, tensors)

    def hold(
        self,
        position: Position,
        tensors: Sequence[StoredTensor],
        metrics: Mapping[str, float] | None,
    ) -> None:
        """Write a snapshot that stays until `release` is called, or another one is held.

        Raises:
            OSError: there is not so much memory.
        """
        self.release()
        self.write(position, tensors, metrics, holds=True)

    def release(self) -> None:
        """Let the snapshot that is held, if any, be replaced; from any thread."""
        self._set_held(-1)

    def _set_held(self, slot: int) -> None:
        if (memory := self._mapped()) is not None:
            struct.pack_into("<q", memory, _HELD_AT, slot)

    def write(
        self,
        position: Position,
        tensors: Sequence[StoredTensor],
        metrics: Mapping[str, float] | None = None,
        *,
        holds: bool = False,
    ) -> Header:
        """Write a snapshot in a slot that is not held and does not have the newest one.

        Args:
            holds: whether it is held; known before it counts, so that no kill comes between.

        Raises:
            OSError: there is not so much memory.
        """
        import numpy as np

        described = [[*tensor[:3], list(tensor.shape), len(tensor.content)] for tensor in tensors]
        description = json.dumps({"metrics": metrics, "tensors": described}).encode()
        length = sum(_aligned(len(tensor.content)) for tensor in tensors)
        newest = self.newest()
        slot = self._free_slot(newest)
        memory = self._with_room(slot, _aligned(len(description)) + length)
        begin, _ = self._room(slot)
        memory[begin : begin + len(description)] = description
        start = begin + _aligned(len(description))
        content = np.frombuffer(memory, np.uint8, length, start)
        _fill(content, tensors)
        header = Header(
            newest.number + 1 if newest else 1,
            position,
            len(description),
            length,
            zlib.crc32(description),
            _checksum(content),
            slot,
        )
        if holds:
            self._set_held(slot)
        self._write_header(header)
        self.note_reached(position.step)
        return header

    def clear(self) -> None:
        """Forget all snapshots: no restart may resume from them."""
        if self._mapped() is not None:
            self.release()
            for slot in _SLOTS:
                self._clear_header(slot)

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        """Close the file; its memory stays while any process has it open or mapped."""
        self._map = None
        os.close(self._file)

    def _mapped(self) -> mmap.mmap | None:
        """Return the memory; None: nothing has been written yet."""
        size = os.fstat(self._file).st_size
        if size and (self._map is None or len(self._map) != size):
            self._map = mmap.mmap(self._file, size)
        return self._map

    def _with_room(self, slot: int, num_bytes: int) -> mmap.mmap:
        """Return the memory, with so much room for a slot, whose snapshot is gone."""
        memory = self._mapped()
        if memory is None or memory[: len(_MAGIC)] != _MAGIC:
            memory = self._extended(0, _PAGE)
            memory[:_PAGE] = bytes(_PAGE)
            _FILE.pack_into(memory, 0, _MAGIC, -1, -1)
        self._clear_header(slot)
        old_start, old_room = self._room(slot)
        if old_room < num_bytes:
            start, room = len(memory), -(-(num_bytes + _SPARE_BYTES) // _PAGE) * _PAGE
            memory = self._extended(start, room)
            _ROOM.pack_into(memory, _ROOMS_AT + slot * _ROOM.size, start, room)
            if old_room:
                memory.madvise(mmap.MADV_REMOVE, old_start, old_room)
        return memory

    def _extended(self, start: int, num_bytes: int) -> mmap.mmap:
        """Return the memory when these bytes of it are allocated."""
        # Fails now, and not with a bus error later, if there is not enough.
        os.posix_fallocate(self._file, start, num_bytes)
        memory = self._mapped()
        assert memory is not None
        return memory

    def _room(self, slot: int) -> tuple[int, int]:
        assert self._map is not None
        start, room = _ROOM.unpack_from(self._map, _ROOMS_AT + slot * _ROOM.size)
        return start, room

    def _free_slot(self, newest: Header | None) -> int:
        memory = self._mapped()
        held = -1 if memory is None else _FILE.unpack_from(memory)[2]
        return next(x for x in _SLOTS if x != held and (newest is None or x != newest.slot))

    def _header(self, slot: int) -> Header | None:
        memory = self._mapped()
        if memory is None:
            return None
        at = _HEADER_BYTES * (slot + 1)
        content = memory[at : at + _SLOT.size]
        (check,) = _CHECK.unpack_from(memory, at + _SLOT.size)
        number, step, reported, *lengths_and_checks = _SLOT.unpack(content)
        if not number or zlib.crc32(content) != check:
            return None
        description, length, first, second = lengths_and_checks
        return Header(number, Position(step, reported), description, length, first, second, slot)

    def _write_header(self, header: Header) -> None:
        assert self._map is not None
        content = _SLOT.pack(
            header.number,
            *header.position,
            header.description_bytes,
            header.content_bytes,
            header.description_check,
            header.checksum,
        )
        at = _HEADER_BYTES * (header.slot + 1)
        content += _CHECK.pack(zlib.crc32(content))
        self._map[at : at + len(content)] = content

    def _clear_header(self, slot: int) -> None:
        assert self._map is not None
        at = _HEADER_BYTES * (slot + 1)
        self._map[at : at + _HEADER_BYTES] = bytes(_HEADER_BYTES)


@dataclass(frozen=True)
class MemoryFiles:
    """The memory files that a process of a run can see.

    Attributes:
        by_process: those of all processes of its supervisor, by name.
        begin: waits until this process may restore; returns the names of the processes whose
            memory holds a snapshot, the newest first.
    """

    own: StateMemory
    by_process: Mapping[str, StateMemory]
    begin: Callable[[], Sequence[str]]


def unpack(header: Header, content: Any) -> list[StoredTensor] | None:
    """Return the tensors of a snapshot, or None if it does not verify.

    Args:
        content: its bytes, [n] uint8, as `StateMemory.content` returns them; the tensors share its
            memory.
    """
    start = _aligned(header.description_bytes)
    if len(content) != start + header.content_bytes:
        return None
    if zlib.crc32(content[: header.description_bytes]) != header.description_check:
        return None
    if _checksum(content[start:]) != header.checksum:
        return None
    return list(_tensors(content[start:], _description(header, content)["tensors"]))


def _fill(target: Any, tensors: Sequence[StoredTensor]) -> None:
    at = 0
    for tensor in tensors:
        end = at + len(tensor.content)
        target[at:end] = tensor.content
        at += _aligned(len(tensor.content))
        target[end:at] = 0  # the same state has the same checksum in all processes


def _description(header: Header, content: Any) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(content[: header.description_bytes].tobytes())
    return description


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _checksum(content: Any) -> int:
    """Return the sum of bytes as 64-bit numbers: as fast as copying, a CRC takes twice that.

    It finds every piece that is missing or of another write, and every single bit.
    """
    import numpy as np

    return int(content.view(np.uint64).sum(dtype=np.uint64))


def _tensors(content: Any, description: Any) -> Iterator[StoredTensor]:
    at = 0
    for key, slice_spec, dtype, shape, size in description:
        yield StoredTensor(key, slice_spec, dtype, shape, content[at : at + size])
        at += _aligned(size)
