"""The same global batch gives the same update on any number of replicas, but for rounding."""

import pytest

from tests.support.training import (
    LOW_PRECISION_ROUNDING,
    ROUNDING,
    distance,
    engine,
    train,
    variables,
)

CASES = {
    "plain": [],
    "clipping": ["train.clip_norm=0.05"],
    "accumulation": ["batch.accumulate=2"],
    "l2": ["model.l2=0.01"],
    "all": [
        "train.clip_norm=0.05",
        "batch.accumulate=2",
        "model.l2=0.01",
        "augment.crop=1",
        "train.ema_decay=0.9",
    ],
    "fp16": ["precision=mixed_float16"],
}
TOLERANCE = {"fp16": LOW_PRECISION_ROUNDING}
OPTIMIZER = ["optimizer=sgd", "optimizer.learning_rate=0.05"]

ADAPTIVE_ROUNDING = (2 * ROUNDING) ** 0.5
"""The same for optimizers that divide by the root of the squared gradient: 7e-3.

A gradient below the rounding of a typical one is nothing but rounding, yet its weight moves as far
as the others, and is off by as much. If gradients are spread evenly up to the typical one, these
are ROUNDING of all weights, on either side of zero; the norm is the root of that. Measured: 1e-6.
"""


@pytest.fixture(scope="module")
def initial(tmp_path_factory):
    """The state before the first step, the same in all cases."""
    return variables(engine(tmp_path_factory.mktemp("initial"), *OPTIMIZER))


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    """The state after training on one device, by the name of the case."""
    states = {}

    def get(case):
        if case not in states:
            states[case] = train(tmp_path_factory.mktemp(case), *OPTIMIZER, *CASES[case])
        return states[case]

    return get


@pytest.mark.parametrize(
    ("case", "replicas"),
    [
        *((case, 2) for case in CASES),
        *(pytest.param(case, 4, marks=pytest.mark.long) for case in ("all", "fp16")),
    ],
)
def test_mirrored_equals_one_device(initial, on_one_device, tmp_path, case, replicas):
    mirrored = ["strategy=mirrored", f"strategy.virtual_devices={replicas}"]
    other = train(tmp_path, *mirrored, *OPTIMIZER, *CASES[case])
    assert distance(on_one_device(case), other, initial) <= TOLERANCE.get(case, ROUNDING)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adamw"])
def test_each_optimizer_agrees(initial, tmp_path, optimizer):
    mirrored = ["strategy=mirrored", "strategy.virtual_devices=2"]
    one = train(tmp_path / "one", f"optimizer={optimizer}")
    two = train(tmp_path / "two", f"optimizer={optimizer}", *mirrored)
    assert distance(one, two, initial) <= ADAPTIVE_ROUNDING


def test_accumulation_changes_nothing_but_rounding(initial, on_one_device):
    assert distance(on_one_device("plain"), on_one_device("accumulation"), initial) <= ROUNDING


def test_clipping_changes_the_update(initial, on_one_device):
    assert distance(on_one_device("plain"), on_one_device("clipping"), initial) > 100 * ROUNDING
