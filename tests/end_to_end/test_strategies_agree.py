"""The same global batch gives the same update on any number of replicas, but for rounding."""

import pytest

from tests.support.training import (
    LOW_PRECISION_ROUNDING,
    ROUNDING,
    distance,
    engine,
    finish,
    recipe,
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


@pytest.mark.long
def test_synchronized_resnet_does_not_depend_on_the_number_of_replicas(tmp_path):
    options = ["model=resnet", "model.depth=8", "batch.global_size=16", "train.steps=1", *OPTIMIZER]
    mirrored = ["strategy=mirrored", "strategy.virtual_devices=2"]
    runs = {
        "one": ["model.synchronized=true"],
        "two": [*mirrored, "model.synchronized=true"],
        "parts": mirrored,
    }
    engines = {name: recipe(tmp_path / name, *options, *more) for name, more in runs.items()}
    start = variables(engines["one"])
    one, two, parts = map(finish, engines.values())
    # A rounding error may select another branch of a ReLU: more than rounding alone.
    assert distance(one, two, start) < 100 * ROUNDING
    assert distance(one, parts, start) > 0.05


@pytest.mark.slow
def test_adam_agrees(initial, tmp_path):
    mirrored = ["strategy=mirrored", "strategy.virtual_devices=2"]
    two = train(tmp_path, "optimizer=adam", *mirrored)
    assert distance(trained("optimizer=adam").variables, two, initial) <= ADAPTIVE_ROUNDING


@pytest.mark.slow
def test_accumulation_is_rounding_and_clipping_is_more(initial):
    plain, accumulation, clipping = (
        trained(*OPTIMIZER, *CASES[case]).variables
        for case in ("plain", "accumulation", "clipping")
    )
    assert distance(plain, accumulation, initial) <= ROUNDING
    assert distance(plain, clipping, initial) > 100 * ROUNDING
