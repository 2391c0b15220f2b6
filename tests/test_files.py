"""Files that are whole or absent, and locks on files."""

import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from trainer.errors import StorageError
from trainer.files import (
    Lock,
    LockedError,
    clear_temporaries,
    component,
    inner_path,
    is_locked,
    write_atomically,
)

NAMES = ["a", "worker-0.log", ".saved", "ä b", "ckpt-5.data-00000-of-00001", "a" * 255, "...", " "]
NO_NAMES = [
    "", ".", "..", "/", "a/b", "../a", "/etc/passwd", "a/", "a\\b", "a\0", "a\n", "\x1b[2J", "\x7f",
    "\x9b1m", "a" * 256, "ä" * 128, "\udc80", None, 5, b"a", ["a"],
]  # fmt: skip


def test_component_returns_names_and_refuses_what_is_none():
    for name in NAMES:
        assert component(name) == name
        assert inner_path(f"logs/{name}") == f"logs/{name}"
    for name in NO_NAMES:
        with pytest.raises(ValueError, match=r"^.* is not a file name: [\x20-\x7e]*$") as refused:
            component(name)
        assert len(str(refused.value)) < 250
        with pytest.raises(ValueError, match="is not a file name"):
            inner_path(f"{name}/.." if isinstance(name, str) else name)


def test_write_atomically_creates_and_replaces_a_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    modes = []
    with monkeypatch.context() as patched:
        replace = os.replace
        patched.setattr(
            os, "replace", lambda a, b: (modes.append(os.stat(a).st_mode & 0o777), replace(a, b))
        )
        write_atomically(path, "first\n", mode=0o600)
    assert modes == [0o600]  # nobody else could read it at any time
    with path.open() as file:
        write_atomically(path, "zweite Zeile: ä\n")
        assert file.read() == "first\n"
    assert path.read_bytes() == "zweite Zeile: ä\n".encode()
    assert os.listdir(tmp_path) == ["result.json"]


def test_write_atomically_keeps_the_old_content_when_it_fails(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new " * 10_000 + "\ud800")
    assert path.read_text() == "old"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "new.json", "\ud800")
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError, match="taken could not be written: Is a directory"):
        write_atomically(tmp_path / "taken", "text")
    assert sorted(os.listdir(tmp_path)) == ["result.json", "taken"]


def test_clear_temporaries_removes_what_a_kill_left(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", lambda *arguments: os._exit(3))
        if (pid := os.fork()) == 0:
            write_atomically(path, "new")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert len(os.listdir(tmp_path)) == 2
    clear_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["result.json"]
    assert path.read_text() == "old"


def test_lock_excludes_others_until_it_is_closed(tmp_path):
    path = tmp_path / "run" / ".lock"
    assert not is_locked(path)
    lock = Lock.acquire(path)
    assert is_locked(path)
    with pytest.raises(LockedError) as caught:
        Lock.acquire(path)
    assert caught.value.holder == str(os.getpid())
    lock.close()
    assert not is_locked(path)
    Lock.acquire(path).close()


def test_lock_is_held_by_a_child_that_inherits_its_descriptor(tmp_path):
    path = tmp_path / ".lock"
    lock = Lock.acquire(path)
    command = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock.fileno(),))
    try:
        lock.close()
        assert is_locked(path)
    finally:
        child.communicate(b"\n", timeout=60)
    assert not is_locked(path)


def test_lock_is_taken_anew_when_its_holder_removes_the_directory(tmp_path):
    path = tmp_path / "run" / ".lock"
    first = Lock.acquire(path)

    def discard():
        shutil.rmtree(path.parent)
        first.close()

    timer = threading.Timer(0.2, discard)
    timer.start()
    second = Lock.acquire(path, timeout_secs=60)
    timer.join()
    assert path.read_text().split()[:2] == [str(os.getpid()), socket.gethostname()]
    assert is_locked(path)
    second.close()
