"""Keras programs in forms that tests/differential does not draw, on one device and on two."""

import numpy as np
import pytest
import tensorflow as tf

from tests.programs import of_batches
from tests.support.training import recipe
from trainer.engine.graph.checks.graph_check import all_graphs
from trainer.errors import ConfigError

LIBRARIES = ("tf_keras", "keras")
LAYOUTS = {"one": (), "two": ("strategy=mirrored", "strategy.virtual_devices=2")}
FLOAT16 = "precision=mixed_float16"


def train(directory, layout, name, *options, data="rows"):
    """Train one program; return its weights, and the metrics of the evaluation."""
    engine = recipe(
        directory,
        "task=keras",
        f"model._target_=tests.programs.of_batches.{name}",
        "dataset=arrays",
        f"dataset.data._target_=tests.programs.of_batches.{data}",
        "batch.global_size=8",
        "train.steps=3",
        "train.steps_per_epoch=100",
        "writers=[jsonl]",
        *(x if "." in x or "jit" in x or x == FLOAT16 else f"+model.{x}" for x in options),
        *LAYOUTS[layout],
    )
    assert engine.train(lambda: False)
    model = engine.state.task.models["model"]
    return model.get_weights(), engine.evaluator.evaluate(lambda: False).metrics


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_step_that_is_neither_mean_nor_sum_trains_on_one_device_alone(tmp_path, library):
    options = (f"library={library}", "neither=true")
    train(tmp_path / "one", "one", "guide", *options)
    problem = r"of_batches.py:\d+: what train_step computes of a batch is neither the mean nor"
    with pytest.raises(ConfigError, match=problem):
        train(tmp_path / "two", "two", "guide", *options)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_step_that_compares_examples_is_evaluated_on_whole_batches(tmp_path, library):
    options = (f"library={library}",)
    weights, one = train(tmp_path / "one", "one", "guide", *options)
    model = of_batches.guide(library=library)
    model.set_weights(weights)
    x = of_batches.rows()[1][0]
    losses = []
    for batch in (x[:8], x[8:]):
        scores = model(batch) @ np.transpose(model(batch))
        losses.append(float(tf.reduce_mean(tf.reduce_logsumexp(scores, axis=1))))
    assert one["loss"] == pytest.approx((8 * losses[0] + 5 * losses[1]) / 13, rel=1e-5)
    two = train(tmp_path / "two", "two", "guide", *options)[1]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


FORMS = [
    ("mse", "jit=true"), ("mse", FLOAT16), ("masked", "jit=true"),
    ("masked", "batch.accumulate=2"), ("masked", "batch.shards=4"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("loss", "form"), FORMS)
def test_every_form_of_the_step_trains_as_the_plain_one(tmp_path, library, loss, form):
    program = ("net", f"library={library}", f"loss={loss}")
    # Of float16 the first updates may be dropped, until the loss scale fits.
    same = (form,) if form == FLOAT16 else ()
    plain, _ = train(tmp_path / "plain", "one", *program, *same)
    two, _ = train(tmp_path / "two", "two", *program, form)
    for one, other in zip(plain, two, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-2 if same else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "options"),
    [("tf_keras", LAYOUTS["two"]), ("keras", ("batch.accumulate=2", "batch.shards=4"))],
)
def test_batches_of_texts_may_differ_in_length(tmp_path, library, options):
    def weights(name, *options):
        engine = recipe(
            tmp_path / name, "task=keras", "model._target_=tests.programs.of_batches.texts",
            f"+model.library={library}", "dataset=stream", "train.steps=4", "writers=[jsonl]",
            "dataset.num_examples=32", "batch.global_size=8",
            "dataset.train._target_=tests.programs.of_batches.padded", *options,
        )  # fmt: skip
        assert engine.train(lambda: False)
        return engine.state.task.models["model"].get_weights()

    for one, other in zip(weights("one"), weights("other", *options), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_gradients_of_what_is_used_three_times_are_added_in_one_order(tmp_path):
    """The kernel of AddN begins with the input whose memory is free first."""
    engine = recipe(
        tmp_path, "task=keras", "model._target_=tests.programs.of_batches.thrice",
        "dataset=arrays", "dataset.data._target_=tests.programs.of_batches.rows",
        "batch.global_size=8", "train.steps=1", "writers=[jsonl]",
    )  # fmt: skip
    traced = []
    engine.loop.on_traced = lambda graph: traced.extend(all_graphs(graph))
    assert engine.train(lambda: False)
    sums = [x for graph in traced for x in graph.get_operations() if x.type == "AddN"]
    assert traced
    assert all(len(operation.inputs) < 3 for operation in sums)
