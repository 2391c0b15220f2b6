"""An optimizer that makes the updates of the one that a model was compiled with, to the formula."""

from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.step.update_check import Clip, clip
from trainer.schedules.schedule import Schedule
from trainer.tasks.keras import optimizers

LIBRARIES = {
    "keras": keras.optimizers,
    "tf_keras": tf.keras.optimizers,
    "legacy": tf.keras.optimizers.legacy,
}
SHAPES = {"kernel": [3, 4], "bias": [4], "embeddings": [2, 3]}
STEPS = 10

FUSED = [
    ("Adam", {}), ("Adam", {"epsilon": 1e-3, "beta_1": 0.5}), ("AdamW", {"weight_decay": 0.1}),
    ("Adam", {"weight_decay": 0.3, "clipnorm": 0.5}), ("SGD", {}), ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "global_clipnorm": 0.1}),
    ("SGD", {"clipvalue": 0.1, "weight_decay": 0.2}), ("RMSprop", {}), ("RMSprop", {"rho": 0.5}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "epsilon": 1e-2}), ("Adagrad", {}),
    ("Adagrad", {"initial_accumulator_value": 0.0}), ("Adagrad", {"epsilon": 0.1}),
    ("Lion", {}), ("Lion", {"weight_decay": 0.1}), ("Adadelta", {}), ("Adamax", {}), ("Ftrl", {}),
    ("Ftrl", {"l1_regularization_strength": 1e-3, "l2_shrinkage_regularization_strength": 0.1}),
    ("Ftrl", {"beta": 0.2, "l2_regularization_strength": 0.1, "learning_rate_power": -0.7}),
]  # fmt: skip
OWN = [
    ("Nadam", {}), ("Adafactor", {}), ("Adafactor", {"weight_decay": 0.1}),
    ("Adam", {"amsgrad": True}), ("Adam", {"use_ema": True, "ema_momentum": 0.8}),
    ("SGD", {"use_ema": True, "ema_overwrite_frequency": 3, "momentum": 0.5}),
    ("Adamax", {"weight_decay": 0.1}),
]  # fmt: skip
OWN_OF_KERAS_3 = [
    ("Lamb", {}), ("Muon", {}), ("Muon", {"weight_decay": 0.1}), ("ScheduleFreeAdamW", {}),
    ("Adam", {"gradient_accumulation_steps": 3, "clipnorm": 0.1}),
]  # fmt: skip
OF_LEGACY = [
    ("Adam", {}), ("SGD", {"momentum": 0.9}), ("Adagrad", {}), ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}), ("Nadam", {}), ("Adam", {"decay": 0.5}),
    ("Adam", {"amsgrad": True}), ("Adadelta", {}), ("Adamax", {}), ("Ftrl", {}),
    ("SGD", {"clipvalue": 0.1, "global_clipnorm": 0.05}),
]  # fmt: skip
CASES = [
    *(("keras", *case) for case in [*FUSED, *OWN, *OWN_OF_KERAS_3]),
    *(("tf_keras", *case) for case in [*FUSED, *OWN]),
    *(("legacy", *case) for case in OF_LEGACY),
]


SIZES = [1.0, 1e-8, 1e3]
"""Of the gradients of each variable."""


def gradients():
    """Return the gradients of each step, by variable."""
    rng = np.random.default_rng(0)
    return [
        [
            tf.constant(size * rng.normal(size=shape), tf.float32)
            for size, shape in zip(SIZES, SHAPES.values(), strict=True)
        ]
        for _ in range(STEPS)
    ]


def variables(library):
    rng = np.random.default_rng(1)
    make = keras.Variable if library == "keras" else tf.Variable
    return [
        make(rng.normal(size=shape).astype(np.float32), name=name) for name, shape in SHAPES.items()
    ]


def built(optimizer, weights):
    """Return what makes the updates here, with the rate of its schedule."""

    def build(node, *, schedule, updates_per_step, make):
        rate = node.options["learning_rate"]
        return make(schedule or Schedule(rate, 0))

    parts = SimpleNamespace(has_optimizer=False, optimizer=build, is_chief=True)
    return optimizers.build(parts, optimizer, weights=weights)


def here(make, library, steps):
    """Return the values of the variables after each update."""
    weights = variables(library)
    own = [getattr(v, "value", v) if library == "keras" else v for v in weights]
    result = built(make(), weights)
    result._create_all_weights(own)

    @tf.function(autograph=False)
    def update(*values):
        clipped = clip(list(values), tf.linalg.global_norm(values), own, result, Clip())
        pairs = zip(clipped, own, strict=True)
        result.apply_gradients(pairs, experimental_aggregate_gradients=False)

    values = []
    for step in steps:
        update(*step)
        values.append([v.numpy() for v in own])
    return values


def of_keras(make, library, steps):
    optimizer = make()
    weights = variables(library)
    if library == "keras":
        optimizer.build(weights)

    @tf.function(autograph=False)
    def update(*values):
        optimizer.apply_gradients(zip(values, weights, strict=True))

    values = []
    for step in steps:
        update(*step)
        values.append([tf.convert_to_tensor(v).numpy() for v in weights])
    return values


def assert_same(make, library):
    start = [tf.convert_to_tensor(v).numpy() for v in variables(library)]
    actual, expected = (run(make, library, gradients()) for run in (here, of_keras))
    for step, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        for name, a, b, before in zip(SHAPES, ours, theirs, start, strict=True):
            moved = np.abs(b - before).max()
            np.testing.assert_allclose(
                a, b, rtol=3e-7, atol=3e-5 * moved, err_msg=f"{name} after update {step + 1}"
            )


QUICK = ("AdamW", "RMSprop", "Adagrad", "Nadam")


@pytest.mark.parametrize(
    ("library", "name", "options"),
    [pytest.param(*case, marks=() if case[1] in QUICK else pytest.mark.slow) for case in CASES],
    ids=str,
)
def test_every_update_is_that_of_keras(library, name, options):
    make = partial(getattr(LIBRARIES[library], name), learning_rate=0.01, **options)
    assert_same(make, library)


def excluding(library):
    optimizer = LIBRARIES[library].AdamW(learning_rate=0.01, weight_decay=5.0)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def scheduled(library, name):
    schedules = keras.optimizers.schedules if library == "keras" else tf.keras.optimizers.schedules
    schedule = schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    return getattr(LIBRARIES[library], name)(schedule)


FURTHER = [
    ("keras", excluding), ("tf_keras", excluding),
    ("keras", lambda library: keras.optimizers.SGD(lambda: 0.05)),
    ("legacy", partial(scheduled, name="RMSprop")),
    *((library, partial(scheduled, name=name))
      for library in ("keras", "tf_keras") for name in ("SGD", "Nadam")),
]  # fmt: skip


@pytest.mark.parametrize(("library", "build"), FURTHER)
def test_exclusions_and_learning_rates_are_those_of_keras(library, build):
    assert_same(partial(build, library), library)
