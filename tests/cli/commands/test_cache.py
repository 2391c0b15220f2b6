"""The command `cache`, and the limit of the user's cache."""

import os
from types import SimpleNamespace

import pytest

from tests.support.command_line import run_here
from trainer import user_cache
from trainer.cli.commands import cache

SIZE = 1 << 16


def write(path, used):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * SIZE)
    os.utime(path, (used, used))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")
    return tmp_path


def test_copies_are_listed_and_removed_but_those_that_a_run_needs(folder):
    mine = write(folder / "cache" / "examples-1.bin", 1e9)
    work = write(folder / "cache" / "bucket" / "run" / "config.yaml", 1e9)
    inputs = folder / "runs" / "inputs"
    needed, unused = write(inputs / "model-1.keras", 1e9), write(inputs / "model-2.keras", 1e9)
    (folder / "runs" / "a").mkdir()
    (folder / "runs" / "a" / "config.yaml").write_text("model: {path: runs/inputs/model-1.keras}")
    listed = run_here("cache")
    assert (listed.code, listed.err) == (0, "")
    assert [line.split()[0] for line in listed.out.splitlines()[1:-1]] == [
        "runs/inputs/model-2.keras",
        str(mine),
    ]
    assert listed.out.endswith("--clear removes them.\n")
    assert run_here("cache", "--clear").code == 0
    assert [path.exists() for path in (mine, unused, needed, work)] == [False, False, True, True]
    assert run_here("cache").out.startswith("No copies of data in")


def test_least_recently_used_files_make_room(tmp_path, monkeypatch, caplog):
    files = [write(tmp_path / f"tokens-{number}.bin", 1e9 + number) for number in range(4)]
    user_cache.mark_used(files[0])
    sizes = [file.size for file in user_cache.cached_files(tmp_path)]
    # Half of the space: that of two of five files.
    free = SimpleNamespace(f_bavail=sum(sizes) // 4, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda folder: free)
    user_cache.make_room(tmp_path / "tokens-new.bin", sizes[0])
    assert [file.exists() for file in files] == [True, False, False, False]
    assert [line.split()[1] for line in caplog.messages] == [
        f"tokens-{number}.bin" for number in (1, 2, 3)
    ]
