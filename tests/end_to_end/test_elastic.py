"""Another strategy at each start: the same examples at each step, the same state at the end."""

import shutil
import signal

import numpy as np
import pytest

from tests.support import toy_tasks
from tests.support.processes import final_variables, only_run, run, signaler, succeed
from tests.support.toy_tasks import recorded

OPTIONS = [
    "model=cnn", "model.width=4", "model.dropout=0", "augment.crop=1",
    "augment.brightness=0.2", "optimizer=sgd",
    "optimizer.learning_rate=0.05", "train.clip_norm=0.5", "train.ema_decay=0.9",
    "batch.global_size=12",
    "callbacks=early_stopping", "callbacks.early_stopping.patience=99",
]  # fmt: skip
EVENTS = [
    "train.steps=24", "evaluate.every_steps=4", "checkpoint.every_steps=3",
    "checkpoint.every_epochs=null", "summary.every_steps=5",
    "restart.backoff_secs=0", "task._target_=toy_tasks.Recording",
]  # fmt: skip
TOLERANCE = 1e-6

STRATEGIES = {
    "one_device": ["strategy=one_device"],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2"],
    "multi_worker": ["strategy=multi_worker", "strategy.workers=3"],
    "central_storage": ["strategy=central_storage", "strategy.virtual_devices=3"],
    # One worker at a time: the steps are in order.
    "parameter_server": ["strategy=parameter_server", "strategy.workers=1"],
}


def project(directory):
    """Make a user's project with a task that records ids."""
    shutil.copy(toy_tasks.__file__, directory)
    return directory


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A project with one run, on one device, to which nothing happened."""
    directory = project(tmp_path_factory.mktemp("straight"))
    succeed(directory, *OPTIONS, *EVENTS)
    return directory


def assert_close(found, expected):
    """Compare two states: numbers up to the rounding of another order of sums, counts exactly.

    Steps that are handed out tell no norm of their gradient: the state then has an older one.
    """
    assert found.keys() == expected.keys()
    different = [
        name
        for name, value in expected.items()
        if "gradient_norm" not in name
        and not np.allclose(
            found[name],
            value,
            rtol=TOLERANCE if value.dtype.kind == "f" else 0,
            atol=TOLERANCE,
            equal_nan=True,
        )
    ]
    assert different == []


def assert_continued(directory, straight):
    """Compare the ids of every attempt at a step, and the state at the end."""
    steps, expected = recorded(directory / "ids"), recorded(straight / "ids")
    assert steps.keys() == expected.keys() == set(range(24))
    assert [
        (step, count)
        for step in steps
        for count, ids in steps[step].items()
        if ids != expected[step][1]
    ] == []
    assert_close(final_variables(only_run(directory)), final_variables(only_run(straight)))


@pytest.mark.slow
def test_run_continues_from_each_strategy_to_the_next(straight, tmp_path):
    directory = project(tmp_path)
    stops = signaler(directory, [4, 8, 12, 16], signal.SIGTERM, "supervisor")
    overrides = [*OPTIONS, *EVENTS, stops]
    for name, code in zip(STRATEGIES, [143, 143, 143, 143, 0], strict=True):
        ended, out, err = run(directory, *overrides, *STRATEGIES[name])
        assert ended == code, f"{name}\n{out}\n{err}"
        overrides = [f"resume=runs/{only_run(directory).name}"]
    assert_continued(directory, straight)
