"""Checkpoints appear, are replaced and disappear by their marker, whatever is interrupted."""

from contextlib import suppress
from pathlib import Path

import pytest

from trainer.runs.checkpoint_marker import (
    abort_write,
    begin_write,
    commit,
    committed_steps,
    read_marker,
    recover,
    verify,
)


def write(directory, step, content):
    prefix = begin_write(directory, step)
    for suffix in ("index", "data-00000-of-00001"):
        (directory / f"{prefix}.{suffix}").write_text(content)


def save(directory, step, content):
    write(directory, step, content)
    commit(directory, step, {"accuracy": len(content)})


def content(directory, step):
    return {path.read_text() for path in directory.glob(f"ckpt-{step}.[di]*")}


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_checkpoint_of_the_same_step_replaces_the_old_one(tmp_path):
    save(tmp_path, 4, "old")
    write(tmp_path, 4, "newer")
    assert verify(tmp_path, 4) is None
    assert content(tmp_path, 4) == {"old"}
    commit(tmp_path, 4, {"accuracy": 5})
    assert verify(tmp_path, 4) is None
    assert content(tmp_path, 4) == {"newer"}
    assert read_marker(tmp_path, 4)["metrics"] == {"accuracy": 5}
    assert len(names(tmp_path)) == 3


@pytest.mark.parametrize("done", range(4))
def test_interrupted_replacement_is_no_checkpoint_until_it_is_finished(tmp_path, monkeypatch, done):
    save(tmp_path, 4, "old")
    write(tmp_path, 4, "newer")
    original, left = Path.replace, [done]

    def replace(path, place):
        left[0] -= 1
        if left[0] < 0:
            raise InterruptedError
        return original(path, place)

    monkeypatch.setattr(Path, "replace", replace)
    with suppress(InterruptedError):
        commit(tmp_path, 4, None)
    assert [verify(tmp_path, step) for step in committed_steps(tmp_path)] == [None] * (done == 3)
    monkeypatch.undo()
    recover(tmp_path)
    assert verify(tmp_path, 4) is None
    assert content(tmp_path, 4) == {"newer"}


def test_what_a_kill_has_left_is_removed(tmp_path):
    save(tmp_path, 2, "whole")
    write(tmp_path, 2, "half")
    (tmp_path / ".ckpt-3.json.17.tmp").touch()
    recover(tmp_path)
    assert names(tmp_path) == ["ckpt-2.data-00000-of-00001", "ckpt-2.index", "ckpt-2.json"]
    assert verify(tmp_path, 2) is None


def test_write_that_fails_leaves_no_file_and_no_other_checkpoint_changes(tmp_path):
    save(tmp_path, 2, "whole")
    before = names(tmp_path)
    for step in (2, 4):
        write(tmp_path, step, "half")
        abort_write(tmp_path, step)
        assert names(tmp_path) == before
    assert content(tmp_path, 2) == {"whole"}
