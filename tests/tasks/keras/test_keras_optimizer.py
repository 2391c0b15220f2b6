"""Compiled optimizers within runs: the numbers of `fit`, on every layout, also after a stop."""

import json

import numpy as np
import pytest

from tests.programs import compiled_optimizers
from tests.support.training import assert_same_bits, recipe, variables

SHORT = (
    "task=keras",
    "model._target_=tests.programs.compiled_optimizers.net",
    "dataset=arrays",
    "dataset.data._target_=tests.programs.compiled_optimizers.examples",
    "batch.global_size=32",
    "evaluate.every_steps=100",
    "writers=[jsonl]",
)
STEPS = 7
MIRRORED = ("strategy=mirrored", "strategy.virtual_devices=2")


def overrides(library, name, options="{}", updates=0, decays=False):
    """Return those of a program."""
    return (
        *SHORT,
        f"+model.library={library}",
        f"+model.optimizer={name}",
        f"+model.options={options}",
        f"+model.updates={updates}",
        f"+model.decays={decays}",
    )


def trained(run_dir, *overrides, stop=lambda engine: False):
    """Train to the end, or until `stop`; return the weights before it, and the engine."""
    engine = recipe(run_dir, f"train.steps={STEPS}", *overrides)
    before = engine.state.task.models["model"].get_weights()
    engine.train(lambda: stop(engine))
    return before, engine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "name", "options", "updates", "decays"),
    [
        ("keras", "Nadam", {}, 2, True),
        ("tf_keras", "AdamW", {"weight_decay": 0.3}, 2, True),
        ("keras", "AdamW", {"weight_decay": 0.3}, 3, True),
        ("keras", "Adafactor", {}, 2, False),
        ("keras", "Halving", {}, 2, True),
        ("tf_keras", "OldHalving", {}, 2, True),
    ],
)
def test_updates_of_an_own_step_are_those_of_fit(tmp_path, library, name, options, updates, decays):
    program = overrides(library, name, str(options).replace("'", ""), updates, decays)
    before, engine = trained(tmp_path, *program, "summary.every_steps=1")
    model = compiled_optimizers.net(
        [5], 3, library=library, optimizer=name, options=options, updates=updates, decays=decays
    )
    model.set_weights(before)
    (x, y), _ = compiled_optimizers.examples()
    history = model.fit(x, y, batch_size=32, epochs=STEPS, shuffle=False, verbose=0).history
    after = engine.state.task.models["model"].get_weights()
    for actual, expected, first in zip(after, model.get_weights(), before, strict=True):
        moved = np.abs(expected - first).max()
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4 * moved)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    logged = [line for line in lines if line["split"] == "train"]
    assert [line["count"] for line in logged] == history["count"]
    np.testing.assert_allclose([line["rate"] for line in logged], history["rate"], rtol=1e-6)


def test_callback_of_keras_reads_rate_and_count_of_updates(tmp_path):
    seen = compiled_optimizers.Reading.seen
    seen.clear()
    callback = "callbacks.keras.callback._target_=tests.programs.compiled_optimizers.Reading"
    program = overrides("keras", "AdamW", updates=2, decays=True)
    trained(tmp_path, *program, "train.steps=3", "callbacks=keras", callback)
    np.testing.assert_allclose(seen, [(0.01, 2), (0.005, 4), (0.0025, 6)], rtol=1e-6)


LAYOUTS = [
    ("tf_keras", "Nadam", "{}", 0),
    ("keras", "Adam", "{use_ema: true, ema_overwrite_frequency: 2, clipnorm: 0.1}", 0),
    ("keras", "Adam", "{gradient_accumulation_steps: 2}", 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("library", "name", "options", "updates"), LAYOUTS)
def test_stopped_run_on_replicas_has_the_bits_of_one_device(
    tmp_path, library, name, options, updates
):
    # The first model of Keras 3 in a process has other weights than later ones.
    compiled_optimizers.net([5], 3, library=library)
    program = (*overrides(library, name, options, updates, True), "batch.shards=2")
    _, one = trained(tmp_path / "one", *program)
    two = (*program, *MIRRORED, "train.steps_per_loop=1", "callbacks={}")
    trained(tmp_path / "two", *two, stop=lambda engine: engine.step >= 3)
    _, resumed = trained(tmp_path / "two", *two)
    assert resumed.step == STEPS
    assert_same_bits(variables(one), variables(resumed))
