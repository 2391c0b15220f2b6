"""The memories of a run: who has one, which is the newest, and that none is left."""

import os

import pytest

from trainer.cluster.spec import ProcessId
from trainer.launch.supervision.memories import Memories
from trainer.runs.state_memory import Position

WORKERS = [ProcessId("worker", number) for number in range(3)]


@pytest.fixture
def memories():
    memories = Memories(is_on=True)
    for process_id in WORKERS:
        memories.add(process_id)
    yield memories
    memories.close()


def test_process_that_trains_has_one_memory(memories):
    before = dict(memories)
    for process_id in (*WORKERS, ProcessId("evaluator", 0)):
        memories.add(process_id)
    assert dict(memories) == before
    assert list(before) == WORKERS


def test_no_process_has_a_memory_where_it_is_off():
    memories = Memories(is_on=False)
    memories.add(WORKERS[0])
    assert (dict(memories), memories.newest(), memories.newest_step()) == ({}, [], 0)


def test_newest_state_comes_first(memories):
    assert (memories.newest(), memories.newest_step()) == ([], 0)
    # Of the same step, the one that has been reported is the newer.
    for process_id, position in zip(WORKERS, [(7, 5), (6, 6), (7, 7)], strict=True):
        memories[process_id].write(Position(*position), [])
    assert memories.newest() == ["worker-2", "worker-0", "worker-1"]
    assert memories.newest_step() == 7
    memories[WORKERS[2]].clear()
    assert memories.newest() == ["worker-0", "worker-1"]


def test_files_end_with_the_memories(memories):
    files = [memory.fileno() for memory in memories.values()]
    assert all("memfd:steadfast-worker-" in os.readlink(f"/proc/self/fd/{x}") for x in files)
    assert not any(os.get_inheritable(file) for file in files)
    memories.close()
    for file in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)
    assert not memories
