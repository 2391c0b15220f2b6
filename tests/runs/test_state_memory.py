"""The memory of a process: a snapshot is read whole and unchanged, or the one before it is."""

import errno
import os
import random
from contextlib import contextmanager

import numpy as np
import pytest

from trainer.runs import state_memory
from trainer.runs.state_memory import Position, StateMemory, StoredTensor

AT = Position(7, 5)


@pytest.fixture
def file():
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def memory(file):
    return StateMemory(file)


@pytest.fixture
def other(file):
    """The same memory as another process maps it."""
    return StateMemory(file)


def tensors(value, size=1000):
    """Return two tensors of different types that a value fills."""
    first = np.full(size, value, np.float32)
    second = np.full((3, 5), value, np.int8)
    return [
        StoredTensor("x", "", "float32", [size], first.view(np.uint8)),
        StoredTensor("y", "3,5:0,3", "int8", [3, 5], second.reshape(-1).view(np.uint8)),
    ]


def stored(memory):
    """Return the value of the snapshot that can be read, or None."""
    header = memory.newest()
    if header is None or (read := memory.read(header)) is None:
        return None
    x, y = read
    values = {*np.frombuffer(x.content, np.float32), *np.frombuffer(y.content, np.int8)}
    expected = tensors(0, size=len(x.content) // 4)
    assert [(*t[:3], list(t.shape)) for t in read] == [(*t[:3], t.shape) for t in expected]
    (value,) = values
    return value


def test_tensors_without_elements_or_dimensions_and_states_without_tensors_are_kept(memory):
    scalar = np.array(2.5).reshape(-1).view(np.uint8)
    tensors = [
        StoredTensor("empty", "", "float32", [0, 3], np.empty(0, np.uint8)),
        StoredTensor("scalar", "", "float64", [], scalar),
    ]
    memory.write(AT, tensors)
    empty, read = memory.read(memory.newest())
    assert (len(empty.content), empty.shape) == (0, [0, 3])
    assert (bytes(read.content), read.shape) == (bytes(scalar), [])
    assert memory.newest().position == AT
    memory.write(AT, [])
    assert memory.read(memory.newest()) == []


def test_reached_step_is_noted_with_a_snapshot_and_between_them(memory, other):
    memory.write(AT, tensors(1))
    assert other.reached == 7
    memory.note_reached(9)
    assert other.reached == 9
    assert stored(other) == 1


class Killed(Exception):
    """Ends a write as a kill would."""


@contextmanager
def killed_at(stage, when):
    owner = StateMemory if hasattr(StateMemory, stage) else state_memory
    original = getattr(owner, stage)

    def killed(*arguments):
        if when == "after":
            original(*arguments)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, stage, killed)
        yield


STAGES = ["_extended", "_clear_header", "_checksum", "_write_header"]


@pytest.mark.parametrize("seed", range(40))
def test_newest_and_held_snapshots_outlive_a_kill_at_any_stage(memory, other, seed):
    """Snapshots of all sizes are written, held, released and forgotten by two mappings."""
    draw = random.Random(seed)
    newest = held = None
    for value in range(1, 60):
        action = draw.choice([*["write"] * 6, *["hold"] * 3, "release", "clear"])
        mapping, reader = draw.sample([memory, other], 2)
        if action in ("release", "clear"):
            getattr(mapping, action)()
            newest, held = (newest if action == "release" else None), None
        else:
            snapshot = [Position(value, value), tensors(value, draw.choice([10, 1000, 50_000]))]
            stage, when = draw.choice([*STAGES, "fileno"]), draw.choice(["before", "after"])
            try:
                with killed_at(stage, when):
                    getattr(mapping, action)(*snapshot, {"loss": value})
                is_written = True
            except Killed:
                is_written = (stage, when) == ("_write_header", "after")
            newest = value if is_written else newest
            if action == "hold":
                held = value if is_written else None
        assert stored(reader) == newest
        if held is None:
            assert reader.held() is None
        else:
            step, metrics, kept = reader.held()
            assert (step, metrics) == (held, {"loss": held})
            assert set(np.frombuffer(kept[0].content, np.float32)) == {held}


def test_held_slot_is_used_again_after_its_release(memory, other):
    memory.hold(AT, tensors(1), None)
    slots = {memory.write(Position(step, 0), tensors(step)).slot for step in range(3, 9)}
    assert len(slots) == 2
    other.release()
    slots = [memory.write(Position(step, 0), tensors(step)).slot for step in (9, 10)]
    assert sorted(slots) == [0, 1]


def test_slot_that_has_grown_elsewhere_is_freed_also_while_it_is_read(memory, other):
    memory.write(Position(1, 1), tensors(1))
    read = other.read(other.newest())
    memory.write(Position(2, 2), tensors(2))
    memory.write(Position(3, 3), tensors(3, size=50_000))
    assert set(np.frombuffer(read[1].content, np.int8)) == {0}
    assert stored(other) == 3


def first_bytes(memory):
    """Yield a byte of each part of the newest snapshot: (part, offset)."""
    header = memory.newest()
    begin, _ = memory._room(header.slot)
    at = state_memory._HEADER_BYTES * (header.slot + 1)
    yield from (("header", at + byte) for byte in range(state_memory._SLOT.size + 4))
    yield from (("description", begin + byte) for byte in range(header.description_bytes))
    start = begin + state_memory._aligned(header.description_bytes)
    yield from (("content", start + byte) for byte in range(0, header.content_bytes, 97))


def test_snapshot_of_which_any_bit_is_flipped_is_not_read(memory, other, file):
    memory.write(Position(1, 0), tensors(1))
    memory.write(Position(2, 0), tensors(2))
    for part, offset in list(first_bytes(memory)):
        (byte,) = os.pread(file, 1, offset)
        for bit in (1, 128):
            os.pwrite(file, bytes([byte ^ bit]), offset)
            # A broken header does not count: then the snapshot before is the newest.
            assert stored(other) == (1 if part == "header" else None), (part, offset)
        os.pwrite(file, bytes([byte]), offset)
    assert stored(other) == 2


def test_cleared_memory_keeps_the_step_reached(memory, other):
    memory.write(AT, tensors(1))
    other.clear()
    assert (memory.newest(), memory.reached) == (None, 7)


def test_lack_of_memory_is_an_error_and_leaves_nothing(memory, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match="Cannot allocate"):
        memory.write(AT, tensors(1))
    assert memory.newest() is None
    assert os.fstat(memory.fileno()).st_size == 0
