"""Other workers or another strategy: the same examples at each step, the same state at the end."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.support import toy_tasks
from tests.support.marks import first_only
from tests.support.processes import final_variables, log, only_run, run, signaler, wait_gone
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
    "multi_worker": ["strategy=multi_worker", "strategy.workers=2"],
    "central_storage": ["strategy=central_storage", "strategy.virtual_devices=3"],
    "parameter_server": [
        "strategy=parameter_server",
        "strategy.workers=1",
    ],  # one worker at a time: the steps are in order
}


def project(directory: Path) -> Path:
    """Make a user's project with a task that records ids."""
    shutil.copy(toy_tasks.__file__, directory)
    return directory


def doing(
    directory: Path, name: str, at: int, number: int, to: str = "worker", index: int = 0
) -> str:
    """Return the override of one more callback that sends a signal at a step, once."""
    override = signaler(directory, [at], number, to, index)
    return override.replace("callbacks.signaler=", f"callbacks.{name}=").replace(
        "{", f"{{record:{name}.sent,", 1
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A project with one run, on one device, to which nothing happened."""
    directory = project(tmp_path_factory.mktemp("straight"))
    code, out, err = run(directory, *OPTIONS, *EVENTS)
    assert code == 0, out + err
    return directory


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
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


def assert_same_log(found: list[dict], expected: list[dict]) -> None:
    assert [(line["step"], line["split"]) for line in found] == [
        (line["step"], line["split"]) for line in expected
    ]
    for line, same in zip(found, expected, strict=True):
        # Only the numbers that both tell: a loop that hands out its steps tells others.
        numbers = {
            key: value
            for key, value in same.items()
            if key != "split" and (key in line or key != "gradient_norm")
        }
        assert {key: line[key] for key in numbers} == pytest.approx(numbers, rel=1e-5, abs=1e-6)


def assert_continued(directory: Path, straight: Path) -> None:
    """Compare a moved run with the straight one: the ids of every attempt at a step, state, log."""
    steps, expected = recorded(directory / "ids"), recorded(straight / "ids")
    assert steps.keys() == expected.keys() == set(range(24))
    assert [
        (step, count)
        for step in steps
        for count, ids in steps[step].items()
        if ids != expected[step][1]
    ] == []
    assert_close(final_variables(only_run(directory)), final_variables(only_run(straight)))
    assert_same_log(log(only_run(directory)), log(only_run(straight)))


def replicas_of(directory: Path) -> dict[int, set[int]]:
    """Return for each step on how many replicas it was made."""
    return {step: set(groups) for step, groups in recorded(directory / "ids").items()}


@pytest.mark.slow
def test_run_on_two_one_and_three_workers_with_kills_equals_a_straight_run(straight, tmp_path):
    directory = project(tmp_path)
    events = [
        doing(directory, "restart", 4, signal.SIGKILL, index=1),
        doing(directory, "orphan", 8, signal.SIGKILL, "supervisor"),
        doing(directory, "stop", 12, signal.SIGTERM, "supervisor"),
        doing(directory, "last", 20, signal.SIGKILL, index=2),
    ]
    code, out, err = run(
        directory, *OPTIONS, *EVENTS, *events, "strategy=multi_worker", "strategy.workers=2"
    )
    assert code == -signal.SIGKILL, out + err
    assert "worker-1 was killed by SIGKILL" in out
    wait_gone(int((directory / "orphan.sent").read_text().split()[1]))
    resume = f"resume=runs/{only_run(directory).name}"
    code, out, err = run(directory, resume, "strategy=one_device")
    assert code == 143, out + err
    assert "Continuing from the checkpoint of step 6." in out
    code, out, err = run(directory, resume, "strategy=multi_worker", "strategy.workers=3")
    assert code == 0, out + err
    assert "Continuing from the checkpoint of step 12." in out
    assert "worker-2 was killed by SIGKILL" in out
    made = replicas_of(directory)
    assert (made[0], made[7], made[11], made[12], made[23]) == ({2}, {1, 2}, {1}, {3}, {3})
    assert_continued(directory, straight)


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", first_only([list(STRATEGIES), list(reversed(STRATEGIES))]), ids=["there", "back"]
)
def test_run_continues_from_each_strategy_to_the_next(straight, tmp_path, order):
    directory = project(tmp_path)
    stops = [
        doing(directory, f"stop{at}", at, signal.SIGTERM, "supervisor") for at in (4, 8, 12, 16)
    ]
    given = [*OPTIONS, *EVENTS, *stops]
    for name, code in zip(order, [143, 143, 143, 143, 0], strict=True):
        ended, out, err = run(directory, *given, *STRATEGIES[name])
        assert ended == code, f"{name}\n{out}\n{err}"
        given = [f"resume=runs/{only_run(directory).name}"]
    assert_continued(directory, straight)
