"""The same global batch gives the same update on any number of replicas, but for rounding."""

import pytest

from tests.support.training import (
    LOW_PRECISION_ROUNDING,
    ROUNDING,
    distance,
    engine,
    train,
    trained,
    variables,
)

CASES = {
    "plain": [],
    "clipping": ["train.clip_norm=0.05"],
    "accumulation": ["batch.accumulate=2"],
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


@pytest.fixture(scope="module")
def initial(tmp_path_factory):
    """The state before the first step, the same in all cases."""
    return variables(engine(tmp_path_factory.mktemp("initial"), *OPTIMIZER))


# Two replicas would differ if any of what "all" has were done once for each of them.
@pytest.mark.parametrize(
    ("case", "replicas"),
    [
        pytest.param("all", 2, marks=pytest.mark.slow),
        pytest.param("fp16", 2, marks=pytest.mark.slow),
        pytest.param("all", 4, marks=pytest.mark.long),
    ],
)
def test_mirrored_equals_one_device(initial, tmp_path, case, replicas):
    mirrored = ["strategy=mirrored", f"strategy.virtual_devices={replicas}"]
    other = train(tmp_path, *mirrored, *OPTIMIZER, *CASES[case])
    one = trained(*OPTIMIZER, *CASES[case]).variables
    assert distance(one, other, initial) <= TOLERANCE.get(case, ROUNDING)


@pytest.mark.slow
def test_accumulation_is_rounding_and_clipping_is_more(initial):
    plain, accumulation, clipping = (
        trained(*OPTIMIZER, *CASES[case]).variables
        for case in ("plain", "accumulation", "clipping")
    )
    assert distance(plain, accumulation, initial) <= ROUNDING
    assert distance(plain, clipping, initial) > 100 * ROUNDING
