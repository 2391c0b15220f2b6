"""Keras programs of either Keras: the same numbers on every strategy, also after a kill."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import final_variables, finished
from tests.support.training import assert_same_bits, finish, recipe
from trainer.datasets.digits import digits

LIBRARIES = ("tf_keras", "keras")
PROGRAMS = ("compiled", "functional", "subclassed", "vae", "gan", "averaging")
SYNCHRONOUS = {
    "mirrored": ("strategy=mirrored", "strategy.virtual_devices=2"),
    "multi_worker": ("strategy=multi_worker", "strategy.workers=2"),
}
SHORT = (
    "dataset=digits", "batch.global_size=32", "train.steps=8", "checkpoint.every_steps=4",
    "evaluate.every_steps=4", "writers=[jsonl]",
)  # fmt: skip


def program(name: str, library: str) -> tuple[str, ...]:
    """Return the overrides of a program."""
    loss = ("task.loss=sparse_categorical_crossentropy", "optimizer=adam")
    return (
        "task=keras",
        f"model._target_=tests.programs.keras_steps.{name}",
        f"+model.library={library}",
        *(loss if name == "functional" else ()),
        *SHORT,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "library"),
    [("vae", "tf_keras"), ("gan", "keras"), ("averaging", "tf_keras"), ("added", "tf_keras")],
)
def test_own_step_has_the_same_bits_on_one_device_and_on_replicas(tmp_path, name, library):
    options = (*program(name, library), "batch.shards=2")
    first = finish(recipe(tmp_path / "one", *options))
    looks = ("summary.histograms=3", "watchdog.audit_every_steps=3")  # they change nothing
    two = recipe(tmp_path / "two", *options, *SYNCHRONOUS["mirrored"], *looks)
    assert_same_bits(finish(two), first)
    assert np.isfinite(first["/epoch"]).all()
    assert first["/epoch"][0] > 0.0  # the loss


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_the_same_bits_on_every_strategy(name, library):
    options = (*program(name, library), "batch.shards=2")
    one = final_variables(finished(*options))
    for overrides in SYNCHRONOUS.values():
        assert_same_bits(one, final_variables(finished(*options, *overrides)))
    finished(*program(name, library), "strategy=parameter_server")


@pytest.mark.slow
@pytest.mark.parametrize("library", [tf.keras, keras], ids=LIBRARIES)
def test_compiled_model_ends_where_fit_ends(tmp_path, library):
    """With the whole training split as one batch the order of examples is no matter."""
    from tests.programs import keras_steps

    data = digits().train
    batch = data.fetch(tf.range(data.num_examples, dtype=tf.int64))
    features = tf.cast(batch["features"], tf.float32) / 16.0
    name = "keras" if library is keras else "tf_keras"
    library.utils.set_random_seed(0)
    model = keras_steps.compiled((8, 8, 1), 10, library=name)
    start = [np.array(weight) for weight in model.get_weights()]
    history = model.fit(
        features, batch["label"], batch_size=data.num_examples, epochs=8, verbose=0
    ).history
    engine = recipe(
        tmp_path, *program("compiled", name), f"batch.global_size={data.num_examples}",
        "summary.every_steps=1",
    )  # fmt: skip
    engine.state.task.models["model"].set_weights(start)
    assert engine.train(lambda: False)
    for own, other in zip(
        engine.state.task.models["model"].get_weights(), model.get_weights(), strict=True
    ):
        # Eight updates by Adam, each of 0.01 at most: rounding is far below 1 % of one.
        np.testing.assert_allclose(own, other, atol=1e-4)
    assert history["loss"][-1] < history["loss"][0]
