import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.toy_sources import write_npy
from trainer.cli.commands import convert
from trainer.errors import ConfigError
from trainer.files import Lock


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dataset=digits", "out=x"], r"to \(missing\) must be one of tfrecord"),
        (["to=tfrecords", "out=x"], r"to \(tfrecords\) must be one.*; did you mean 'tfrecord'\?"),
        (["to=tfrecord"], r"out \(missing\) must name a folder; add out=<folder>"),
        (["to=tfrecord", "out=x", "shard_mb=0"], r"shard_mb \(0\.0\) must be > 0"),
        (["to=tfrecord", "out=x", "shard_mb=big"], r"shard_mb \(big\) must be > 0"),
        (["to=tfrecord", "out=x", "model=cnn"], r"convert \(model=cnn\) must be to=<format>"),
        (
            ["to=tfrecord", "out=x", "augment=mixup"],
            r"convert \(augment=mixup\) must be to=<format>",
        ),
        (["digits", "to=tfrecord", "out=x"], r"convert \(digits\) must be to=<format>, out=<fol"),
        (["to=tfrecord", "out=x", "dataset=digit"], "did you mean 'digits'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        convert.run(arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("diabetes", "convert: the dataset is fitted to its training split by a run, as a table"),
        ("npy", "convert: records hold one class an example, the labels are numbers; train on"),
    ],
)
def test_dataset_that_records_cannot_hold_is_refused(
    tmp_path: Path, dataset: str, message: str
) -> None:
    data = write_npy(tmp_path / "data", np.zeros((60, 3)), np.linspace(0.0, 1.0, 60))
    options = [f"dataset.path={data}"] if dataset == "npy" else []
    with pytest.raises(ConfigError, match=message):
        convert.run([f"dataset={dataset}", *options, "to=tfrecord", f"out={tmp_path / 'out'}"])


def test_folder_that_is_being_written_is_refused(tmp_path: Path) -> None:
    lock = Lock.acquire(tmp_path / ".lock")
    try:
        with pytest.raises(ConfigError, match=r"out \(.*\) is being written by process \d+"):
            convert.run(["dataset=digits", "to=tfrecord", f"out={tmp_path}"])
    finally:
        lock.close()


def test_digits_are_converted_and_what_comes_next_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stderr = sys.stderr
    assert convert.run(["dataset=digits", "to=tfrecord", f"out={tmp_path / 'a'}"]) == 0
    out, err = capfd.readouterr()
    assert out.endswith(f"Read it with: dataset=tfrecord dataset.path={tmp_path / 'a'}\n")
    assert (err, sys.stderr) == ("", stderr)
    # The lock alone is not another conversion.
    with pytest.raises(ConfigError, match=r"out \(.*\) holds another conversion"):
        convert.run(["dataset=digits", "to=tfrecord", f"out={tmp_path / 'a'}", "shard_mb=1"])
