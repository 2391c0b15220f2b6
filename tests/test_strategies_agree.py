"""The same global batch gives the same update on any number of replicas."""

import numpy as np
import pytest

from tests.training import train, weights

CASES = {
    "plain": [],
    "clipping": ["train.clip_norm=0.05"],
    "accumulation": ["batch.accumulate=2"],
    "l2": ["model.l2=0.01"],
    "all": ["train.clip_norm=0.05", "batch.accumulate=2", "model.l2=0.01", "dataset.crop=1", "train.ema_decay=0.9"],
    "fp16": ["precision=mixed_float16"],
}
TOLERANCE = {"fp16": 5e-3}  # half precision has 11 bits
OPTIMIZER = ["optimizer=sgd", "optimizer.learning_rate=0.05"]


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    made = {}

    def get(case):
        if case not in made:
            made[case] = train(tmp_path_factory.mktemp(case), *OPTIMIZER, *CASES[case])
        return made[case]

    return get


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_mirrored_equals_one_device(on_one_device, tmp_path, case, replicas):
    other = train(tmp_path, "strategy=mirrored", f"strategy.virtual_devices={replicas}", *OPTIMIZER, *CASES[case])
    difference = np.abs(weights(on_one_device(case)) - weights(other)).max()
    assert difference <= TOLERANCE.get(case, 1e-6)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adamw"])
def test_each_optimizer_agrees(tmp_path, optimizer):
    one = train(tmp_path / "one", f"optimizer={optimizer}")
    two = train(tmp_path / "two", f"optimizer={optimizer}", "strategy=mirrored", "strategy.virtual_devices=2")
    # These divide by the root of the squared gradient: rounding of a gradient near zero is magnified up to the learning rate.
    assert np.abs(weights(one) - weights(two)).max() <= 2e-4


@pytest.mark.parametrize("case", ["accumulation", "clipping"])
def test_the_option_does_something_or_nothing(on_one_device, case):
    difference = np.abs(weights(on_one_device("plain")) - weights(on_one_device(case))).max()
    assert (difference <= 1e-6) == (case == "accumulation")
