"""Files that are whole or absent, and locks on files."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from random import Random

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


@pytest.mark.parametrize("name", NAMES)
def test_component_returns_names(name):
    assert component(name) == name
    assert inner_path(f"logs/{name}") == f"logs/{name}"


@pytest.mark.parametrize("name", NO_NAMES, ids=ascii)
def test_component_refuses_what_is_none(name):
    with pytest.raises(ValueError, match=r"^.* is no name of a file: [\x20-\x7e]*$") as refused:
        component(name)
    assert len(str(refused.value)) < 250
    with pytest.raises(ValueError, match="is no name of a file"):
        inner_path(f"{name}/.." if isinstance(name, str) else name)


def test_component_of_any_text_stays_in_its_folder(tmp_path):
    random = Random(0)
    alphabet = [*"ab./\\~:*\n\0\x1b\x85 ä\u202e\udc80\u2215", "..", "../", "x" * 200]
    texts = ["".join(random.choices(alphabet, k=random.randint(0, 5))) for _ in range(20_000)]
    num_names = 0
    for text in texts:
        for function in (component, inner_path):
            with suppress(ValueError):
                name = function(text)
                num_names += 1
                path = os.path.normpath(os.path.join(tmp_path, name))
                parts = os.path.relpath(path, tmp_path).split("/")
                assert (name, parts) == (text, text.split("/"))
                assert len(parts) == 1 or function is inner_path
                assert not re.search(r"[\x00-\x1f\x7f-\x9f]", name)
    assert num_names > 2000


def test_write_atomically_creates_and_replaces_a_file(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "first\n")
    assert path.read_text() == "first\n"
    write_atomically(path, "zweite Zeile: ä\n")
    assert path.read_bytes() == "zweite Zeile: ä\n".encode()
    assert os.listdir(tmp_path) == ["result.json"]


def test_write_atomically_keeps_the_old_content_when_it_fails(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new " * 10_000 + "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_write_atomically_leaves_nothing_when_the_first_write_fails(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "result.json", "\ud800")
    assert os.listdir(tmp_path) == []


def test_write_atomically_removes_its_temporary_file_when_it_cannot_replace(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError, match="taken could not be written: Is a directory"):
        write_atomically(tmp_path / "taken", "text")
    assert os.listdir(tmp_path) == ["taken"]


def test_open_readers_keep_the_old_content(tmp_path):
    path = tmp_path / "config.yaml"
    write_atomically(path, "old")
    with path.open() as file:
        write_atomically(path, "new")
        assert file.read() == "old"
    assert path.read_text() == "new"


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


def test_lock_waits_for_its_holder(tmp_path):
    lock = Lock.acquire(tmp_path / ".lock")
    timer = threading.Timer(0.2, lock.close)
    timer.start()
    Lock.acquire(tmp_path / ".lock", timeout_secs=60).close()
    timer.join()
    assert not is_locked(tmp_path / ".lock")


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


def test_unlock_ends_the_lock_of_every_process(tmp_path):
    lock = Lock.acquire(tmp_path / ".lock")
    descriptor = os.dup(lock.fileno())
    lock.unlock()
    assert not is_locked(tmp_path / ".lock")
    os.close(descriptor)
    lock.close()


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


def test_private_file_is_never_readable_by_others(tmp_path, monkeypatch):
    modes = []
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda a, b: (modes.append(os.stat(a).st_mode & 0o777), replace(a, b))
    )
    write_atomically(tmp_path / "token", "secret", mode=0o600)
    assert modes == [0o600]
    assert (tmp_path / "token").read_text() == "secret"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
