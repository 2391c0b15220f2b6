"""Checkpoints appear, are replaced and disappear by their marker, wherever that is interrupted."""

from trainer.runs.checkpoint_marker import (
    abort_write,
    begin_write,
    commit,
    read_marker,
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


def test_write_that_fails_leaves_no_file_and_no_other_checkpoint_changes(tmp_path):
    save(tmp_path, 2, "whole")
    before = names(tmp_path)
    for step in (2, 4):
        write(tmp_path, step, "half")
        abort_write(tmp_path, step)
        assert names(tmp_path) == before
    assert content(tmp_path, 2) == {"whole"}
