"""Runs with a table of which each step looks up few rows, in several processes."""

import pytest

from tests.support.processes import run
from tests.support.small_runs import train
from trainer.errors import ConfigError

OPTIONS = [
    "dataset=arrays", "dataset.data._target_=tests.support.toy_tables.examples",
    "model._target_=tests.support.toy_tables.model", "optimizer=adagrad",
    "batch.global_size=16", "train.steps=6", "train.epochs=null", "checkpoint.every_steps=3",
    "summary.every_steps=2", "writers=[jsonl]", "restart.max_restarts=0",
]  # fmt: skip
TABLE = "embedding/embeddings (40,000 x 8): gradients by rows"


@pytest.mark.slow
def test_first_lines_name_the_table_and_what_the_optimizer_does(tmp_path):
    _, out, _ = run(tmp_path, *OPTIONS)
    assert f"{TABLE}\n" in out
    _, out, _ = run(tmp_path, *OPTIONS, "optimizer=adam", "train.steps=1")
    every = "; Adam moves every row at each step (optimizer.lazy=true: only those of the batch)"
    assert f"{TABLE}{every}\n" in out
    _, out, _ = run(tmp_path, *OPTIONS, "optimizer=adam", "optimizer.lazy=true", "train.steps=1")
    assert f"{TABLE}\n" in out


def test_optimizer_of_whole_tables_cannot_be_lazy(tmp_path):
    with pytest.raises(ConfigError) as raised:
        train(tmp_path, *OPTIONS, "optimizer=lamb", "optimizer.lazy=true")
    assert raised.value.problems == (
        "optimizer.lazy (true) updates rows of a table alone, and this optimizer (Lamb) needs "
        "the whole table; remove it",
    )
