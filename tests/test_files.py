"""A file is there whole, or as it was."""

import os

import pytest

from trainer.errors import StorageError
from trainer.files import clear_temporaries, write_atomically


def test_writes_a_new_file_and_replaces_an_old_one(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "first\n")
    assert path.read_text() == "first\n"
    write_atomically(path, "zweite Zeile: ä\n")
    assert path.read_bytes() == "zweite Zeile: ä\n".encode()
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new " * 10_000 + "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_failed_first_write_leaves_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "result.json", "\ud800")
    assert os.listdir(tmp_path) == []


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError, match="taken could not be written: Is a directory"):
        write_atomically(tmp_path / "taken", "text")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_reader_keeps_what_it_has_opened(tmp_path):
    path = tmp_path / "config.yaml"
    write_atomically(path, "old")
    with path.open() as opened:
        write_atomically(path, "new")
        assert opened.read() == "old"
    assert path.read_text() == "new"


def test_what_a_kill_left_is_removed(tmp_path, monkeypatch):
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
