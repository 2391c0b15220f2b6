"""Updates divided among the processes of a host: the bits of the undivided one."""

import pytest

from tests.support.processes import final_variables, finished, log
from tests.support.training import assert_same_bits

OPTIONS = [
    "strategy=multi_worker", "strategy.workers=2", "model=cnn", "dataset=synthetic",
    "dataset.num_examples=256", "batch.global_size=32", "train.steps=6", "train.epochs=null",
    "checkpoint.every_steps=3", "summary.every_steps=2", "writers=[jsonl]",
    "restart.max_restarts=0",
]  # fmt: skip
SHARDED = "strategy.update=sharded"
REPLICATED = "strategy.update=replicated"
OPTIMIZERS = [
    "sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad", "lion", "lars", "lamb", "adafactor", "muon"
]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bits(optimizer):
    options = [*OPTIONS, f"optimizer={optimizer}"]
    whole, parts = (finished(*options, update) for update in (REPLICATED, SHARDED))
    assert_same_bits(final_variables(whole), final_variables(parts))
    assert log(whole) == log(parts)
