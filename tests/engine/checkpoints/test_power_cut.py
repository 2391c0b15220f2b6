"""The power is cut at any point of any sequence of saves: the newest committed state is restored.

What reached no `fsync` may be lost, in any order: the content of a file, and each change of the
names in a folder, alone. The method is ALICE's (Pillai et al., "All File Systems Are Not Created
Equal", OSDI 2014): the calls of a sequence are recorded, and states of the disk that they allow
are made and recovered from.
"""

import builtins
import errno
import io
import itertools
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tensorflow as tf

from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.checkpoints.snapshot import Snapshot
from trainer.errors import CheckpointError, StorageError
from trainer.files import read_json, write_json
from trainer.runs.checkpoint_marker import committed_steps, recover, verify
from trainer.runs.checkpoint_retention import KeepBest, KeepNewest
from trainer.runs.ledger import Ledger
from trainer.runs.recorded_metrics import read_lines
from trainer.summaries.writers.jsonl import JsonLines

MOST_LOST = 10
"""Of more changes of names, some of the subsets that may be lost are drawn."""


@dataclass
class Disk:
    """What a power cut may leave of a folder.

    Attributes:
        names: the names that have been flushed, each with the number of its file.
        changes: those of names since then, in order: a file, its old name and its new one, if any.
        contents: of each file: what has been flushed, and what has been written.
    """

    names: dict = field(default_factory=dict)
    changes: list = field(default_factory=list)
    contents: dict = field(default_factory=dict)

    def copy(self):
        return Disk(dict(self.names), list(self.changes), dict(self.contents))

    def applied(self, changes):
        names = dict(self.names)
        for file, old, new in changes:
            names.pop(old, None)
            if new:
                names[new] = file
        return names

    def states(self, draw):
        """Yield every content of the folder, by name, that a cut of the power may leave."""
        count = len(self.changes)
        choices = list(itertools.product([True, False], repeat=min(count, MOST_LOST)))
        if count > MOST_LOST:
            choices = [tuple(draw.random() < 0.5 for _ in range(count)) for _ in choices]
        for chosen in choices:
            names = self.applied([*itertools.compress(self.changes, chosen)])
            for kept in (1.0, 0.5, 0.0):
                yield {name: self._left(file, kept) for name, file in names.items()}

    def _left(self, file, kept):
        flushed, written = self.contents[file]
        if written == flushed:
            return written
        begin = len(flushed) if written.startswith(flushed) else 0  # lines that were added
        return written[: begin + int(kept * (len(written) - begin))]


class Recorder:
    """Follows what is done to a folder, and notes what the disk may have at each point.

    Attributes:
        points: the disk before each call, with what had been promised by then.
    """

    def __init__(self, folder, patch):
        self._folder = folder
        self._disk = Disk()
        self.points = []
        self.promised = None
        for name in ("fsync", "replace", "rename", "unlink"):
            patch.setattr(os, name, self._followed(getattr(os, name), name))

    def _followed(self, call, name):
        def followed(*arguments, **options):
            self.note()
            inode = os.fstat(arguments[0]).st_ino if name == "fsync" else 0
            result = call(*arguments, **options)
            if inode == self._folder.stat().st_ino:
                self._disk.names, self._disk.changes = self._disk.applied(self._disk.changes), []
            elif inode in self._disk.contents:
                written = self._disk.contents[inode][1]
                self._disk.contents[inode] = (written, written)
            self.note()
            return result

        return followed

    def note(self):
        """Compare the folder with what is known of it, and keep the disk at this point."""
        disk = self._disk
        before = disk.applied(disk.changes)
        now = {path.name: path.stat().st_ino for path in self._folder.iterdir() if path.is_file()}
        moved = {file: name for name, file in now.items() if before.get(name) != file}
        for name, file in before.items():
            if file in moved or name not in now:
                disk.changes.append((file, name, moved.pop(file, "")))
        disk.changes += [(file, "", name) for file, name in moved.items()]
        for name, file in now.items():
            flushed = disk.contents.get(file, (b"", b""))[0]
            disk.contents[file] = (flushed, (self._folder / name).read_bytes())
        self.points.append((disk.copy(), self.promised))

    def cuts(self, place, number):
        """Yield folders as some cuts of the power leave them, each with what is promised."""
        draw = random.Random(0)
        found = {}
        for disk, promised in self.points:
            for state in disk.states(draw):
                found[tuple(sorted(state.items())), promised] = state
        cases = sorted(found.items(), key=str)
        for (_, promised), state in draw.sample(cases, min(number, len(cases))):
            copy = Path(tempfile.mkdtemp(dir=place))
            for name, content in state.items():
                (copy / name).write_bytes(content)
            yield copy, promised


SEQUENCES = {
    "retention": [2, 4, 6, 8],
    "the same step again": [2, 4, 4, 4, 6],
    "rollback": [2, 4, 6, -2, 4, 6],
    "best": [2, 4, 6, 8],
}
"""Steps that are saved; a negative one: all after it are removed, and it is restored."""


def newest(folder):
    """Return the newest step whose files are sound, after what a start does, or -1."""
    recover(folder)
    return max((step for step in committed_steps(folder) if not verify(folder, step)), default=-1)


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_newest_committed_checkpoint_survives(tmp_path, monkeypatch, sequence):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    variable = tf.Variable(0)
    keep = [KeepNewest(1), *([KeepBest("loss", "min", 1)] if sequence == "best" else [])]
    checkpointer = Checkpointer(folder, {"step": variable}, keep)
    with monkeypatch.context() as patch:
        recorder = Recorder(folder, patch)
        for step in SEQUENCES[sequence]:
            if step < 0:
                recorder.promised = -step
                checkpointer.restore_latest(at_most=-step)
            else:
                variable.assign(step)
                checkpointer.save(step, {"loss": step})
                recorder.promised = step
            recorder.note()
    for copy, promised in recorder.cuts(tmp_path, 300):
        found = newest(copy)
        assert found >= (promised or -1), (sorted(os.listdir(copy)), promised)
        if found >= 0:
            Checkpointer(copy, {"step": variable}).restore(found)
            assert int(variable) == found


def test_record_is_the_old_or_the_new_one(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    with monkeypatch.context() as patch:
        recorder = Recorder(folder, patch)
        for number in range(3):
            write_json(folder / "result.json", {"step": number, "text": "x" * number})
            recorder.promised = number
            recorder.note()
    for copy, promised in recorder.cuts(tmp_path, 300):
        if promised is not None or (copy / "result.json").exists():
            found = read_json(copy / "result.json")["step"]
            assert found in {promised, 0 if promised is None else promised + 1}


def test_log_has_what_was_flushed(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    with monkeypatch.context() as patch:
        recorder = Recorder(folder, patch)
        for position in range(3):
            writer = JsonLines(folder, position)
            for step in (position + 1, position + 2):
                writer.scalars("train", step, {"loss": 1.0})
                recorder.note()
            writer.close()
            recorder.promised = position + 1
    for copy, promised in recorder.cuts(tmp_path, 300):
        JsonLines(copy, position := promised or 0).close()
        lines, num_damaged = read_lines(copy / "metrics.jsonl")
        assert [line["step"] for line in lines] == [*range(1, position + 1)]
        assert not num_damaged


class FailingDisk:
    """A disk that refuses one of the calls that change it, after a half, or that and all later.

    Attributes:
        left: how many calls it still carries out.
    """

    def __init__(self, patch, left, code, lasts):
        self.left = left
        self._code, self._lasts = code, lasts
        patch.setattr(os, "fsync", self._guarded(lambda file: None))
        patch.setattr(Snapshot, "write", self._guarded(Snapshot.write, is_half_done=True))
        for name in ("replace", "rename", "mkdir", *(["unlink"] if code == errno.EIO else [])):
            patch.setattr(os, name, self._guarded(getattr(os, name)))
        for module in (builtins, io):
            patch.setattr(module, "open", self._opened(module.open))

    def _guarded(self, call, is_half_done=False):
        def guarded(*arguments, **options):
            self.left -= 1
            if self.left == -1 or (self.left < 0 and self._lasts):
                if is_half_done:
                    call(*arguments, **options)
                raise OSError(self._code, os.strerror(self._code))
            return call(*arguments, **options)

        return guarded

    def _opened(self, call):
        changing = self._guarded(call)

        def opened(path, mode="r", *arguments, **options):
            if mode.startswith("r"):
                return call(path, mode, *arguments, **options)
            file = changing(path, mode, *arguments, **options)
            write = file.write

            def write_half(content):
                write(content[: len(content) // 2])
                file.flush()
                return self._guarded(write)(content[len(content) // 2 :])

            file.write = write_half
            return file

        return opened


def run_until_it_fails(folder, variable):
    """Save, mark and log as a run does; return the step that it has saved."""
    saved = 0
    checkpointer = Checkpointer(folder / "checkpoints", {"step": variable}, [KeepNewest(1)])
    ledger = Ledger(folder)
    try:
        writer = JsonLines(folder, 0)
        for step in (2, 4, 4):
            ledger.mark("save", step)
            if step != saved:
                writer.scalars("train", step, {})
            writer.flush()
            variable.assign(step)
            checkpointer.save(step, None)
            saved = step
            write_json(folder / "result.json", {"step": step})
    except (CheckpointError, StorageError):
        pass
    return saved


@pytest.mark.parametrize(
    ("code", "lasts"), [(errno.EIO, False), (errno.EIO, True), (errno.ENOSPC, True)]
)
def test_write_that_fails_loses_nothing_that_was_saved(tmp_path, monkeypatch, code, lasts):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    variable = tf.Variable(0)
    for number in itertools.count():
        (folder := tmp_path / str(number)).mkdir()
        with monkeypatch.context() as patch:
            disk = FailingDisk(patch, number, code, lasts)
            saved = run_until_it_fails(folder, variable)
        checkpointer = Checkpointer(folder / "checkpoints", {"step": variable}, [KeepNewest(1)])
        found = checkpointer.restore_latest() or 0
        assert found >= saved, number
        assert int(variable) == found or not found
        JsonLines(folder, found).close()
        assert [x["step"] for x in read_lines(folder / "metrics.jsonl")[0]] == [
            *range(2, found + 1, 2)
        ]
        for begun in ("begin", "start"):
            Ledger(folder).mark(begun)
        assert Ledger(folder).summary().attempts == 1
        checkpointer.save(8, None)
        assert {x.name.split(".")[0] for x in (folder / "checkpoints").iterdir()} == {"ckpt-8"}
        if (folder / "result.json").exists():
            assert read_json(folder / "result.json")["step"] <= found
        if disk.left >= 0:
            break
    assert bool(pauses) == (code == errno.EIO), "a full disk stays full"
    assert number > 40
