"""Where two checkpoints differ most."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.command_line import run_here
from trainer.cli.compose import compose
from trainer.runs.checkpoint_marker import commit
from trainer.runs.directory import open_run
from trainer.worker.checkpoint_difference import largest_difference


def save(directory, weight, count):
    module = tf.Module()
    module.weight = tf.Variable(np.float32(weight))
    checkpoint = tf.train.Checkpoint(models=module, count=tf.Variable(np.int64(count)))
    return checkpoint.write(str(directory / "ckpt-5"))


@pytest.mark.parametrize(
    ("weight", "count", "expected"),
    [
        ([1.0, 2.5], 9, ("models/weight", 0.5)),
        ([1.0, np.nan], 3, ("models/weight", np.inf)),
        ([1.0, 2.0], 9, ("count", 6.0)),
    ],
)
def test_weight_that_differs_most_is_named(tmp_path, weight, count, expected):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = save(tmp_path / "a", [1.0, 2.0], 3)
    assert largest_difference(first, save(tmp_path / "b", weight, count)) == expected


@pytest.mark.slow
def test_diff_of_two_runs_names_the_difference(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = []
    for name, weight in (("a", [1.0, 2.0]), ("b", [1.0, 2.5])):
        run = open_run(compose([f"name={name}"]), [], None)
        run.release()
        paths.append(str(run.path))
        folder = Path(run.path, "checkpoints")
        folder.mkdir(exist_ok=True)
        save(folder, weight, 3)
        commit(folder, 5, None, {"models/weight": {"crc32": weight[1]}, "count": {"crc32": 3}})
    done = run_here("diff", *paths)
    assert done.code == 1
    assert done.out.splitlines()[-1] == (
        "1 of 2 variables of step 5 differ, by 5.0e-01 at most, in models/weight."
    )
