"""Compiled and custom Keras programs: the numbers of `fit` on one device, on every layout."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.programs import of_batches
from tests.support.training import recipe
from trainer.engine.graph.checks.graph_check import all_graphs
from trainer.engine.graph.step.metric_sums import unpack
from trainer.errors import ConfigError

LIBRARIES = {"tf_keras": tf.keras, "keras": keras}
LAYOUTS = {
    "one": (),
    "two": ("strategy=mirrored", "strategy.virtual_devices=2"),
    "shards": ("batch.shards=2",),
    "accumulate": ("batch.accumulate=2",),
}
BATCH = 8


def train(directory, name, layout, *options, steps=3, rows=(), data="rows"):
    """Train one program; return its weights, and the metrics of its training and its evaluation."""
    engine = recipe(
        directory,
        "task=keras",
        f"model._target_=tests.programs.of_batches.{name}",
        "dataset=arrays",
        f"dataset.data._target_=tests.programs.of_batches.{data}",
        *(f"+dataset.data.{option}" for option in rows),
        f"batch.global_size={BATCH}",
        f"train.steps={steps}",
        "train.steps_per_epoch=100",
        "writers=[jsonl]",
        *(x.removeprefix("++") if "." in x or "++" in x else f"+model.{x}" for x in options),
        *LAYOUTS[layout],
    )
    model = engine.state.task.models["model"]
    start = model.get_weights()
    assert engine.train(lambda: False)
    trained = unpack(engine.state.task, engine.state.epoch_sums.numpy())
    tested = engine.evaluator.evaluate(lambda: False).metrics
    return engine, start, model.get_weights(), trained, tested


def of_keras(engine, model, start, rows, steps=3, **options):
    """Train the same batches with Keras; return its weights and metrics."""
    data = of_batches.rows(**rows)
    order = engine.loop.feed.source.order
    batches = []
    for step in range(steps):
        positions = tf.range(step * BATCH, (step + 1) * BATCH, dtype=tf.int64)
        indices = order.locate(positions)[1].numpy()
        batches.append(tuple(each[indices] for each in data[0]))
    joined = [np.concatenate(each) for each in zip(*batches, strict=True)]
    model.set_weights(start)
    weight = joined[2] if len(joined) > 2 else None
    history = model.fit(
        joined[0], joined[1], sample_weight=weight, batch_size=BATCH, shuffle=False, verbose=0,
        **options,
    ).history  # fmt: skip
    test = data[1]
    tested = model.evaluate(
        test[0], test[1], sample_weight=test[2] if len(test) > 2 else None, batch_size=BATCH,
        verbose=0, return_dict=True,
    )  # fmt: skip
    return model.get_weights(), {name: values[-1] for name, values in history.items()}, tested


def assert_alike(first, second):
    assert len(first[0]) == len(second[0])
    for one, other in zip(first[0], second[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    for one, other in zip(first[1:], second[1:], strict=True):
        assert one == pytest.approx(other, rel=5e-5)


COMPILED = [
    ("net", ("loss=mean",), {}),
    pytest.param("net", ("flat=true",), {}, marks=pytest.mark.long),
    ("net", ("loss=sum", "metric=true"), {}),
    pytest.param("net", ("loss=masked",), {}, marks=pytest.mark.long),
    ("net", ("loss=dice",), {"kind": "class"}),
    ("weighted", ("loss=mse",), {"weighted": True}),
    pytest.param("weighted", ("loss=mean",), {"weighted": True}, marks=pytest.mark.long),
    ("only_added", (), {}),
]


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("name", "options", "rows"), COMPILED)
def test_compiled_program_trains_and_evaluates_as_fit_does(tmp_path, library, name, options, rows):
    texts = [f"{key}={json.dumps(value)}" for key, value in rows.items()]
    first = None
    for layout in LAYOUTS:
        run = train(tmp_path / layout, name, layout, f"library={library}", *options, rows=texts)
        if first is None:
            arguments = dict(option.split("=") for option in options)
            arguments = {k: v if k == "loss" else v == "true" for k, v in arguments.items()}
            model = getattr(of_batches, name)(library=library, **arguments)
            first = run
            assert_alike(run[2:], of_keras(run[0], model, run[1], rows))
        assert_alike(run[2:], first[2:])


STEPS = [
    (1, "mean", LAYOUTS),
    (1, "weighted", ("two",)),
    (2, "mean", ("two", "shards")),
    (2, "vector", ("two", "shards")),
    (2, "sum", ("two", "shards")),
]


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("variant", "loss", "layouts"), STEPS)
def test_custom_step_trains_as_fit_does(tmp_path, library, variant, loss, layouts):
    options = (f"library={library}", f"variant={variant}", f"loss={loss}")
    rows, texts, weights = {}, [], None
    if loss == "weighted":
        rows, texts, weights = {"kind": "class"}, ["kind=class"], {0: 3.0, 1: 0.5}
        options = (*options, "task.class_weights={0:3.0,1:0.5}")
    one = train(tmp_path / "one", "guide", "one", *options, rows=texts)
    model = of_batches.guide(variant, library=library, loss=loss)
    expected = of_keras(one[0], model, one[1], rows, class_weight=weights)
    assert_alike(one[2:3], expected[:1])
    if variant == 1:  # else `fit` reports the last batch alone
        assert_alike(one[2:4], expected[:2])
    for layout in layouts:
        if layout not in ("one", "accumulate"):
            run = train(tmp_path / layout, "guide", layout, *options, rows=texts)
            assert_alike(run[2:], one[2:])


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_step_that_is_neither_mean_nor_sum_trains_on_one_device_alone(tmp_path, library):
    options = (f"library={library}", "variant=2", "loss=neither")
    train(tmp_path / "one", "guide", "one", *options)
    problem = r"of_batches.py:\d+: what train_step computes of a batch is neither the mean nor"
    with pytest.raises(ConfigError, match=problem):
        train(tmp_path / "two", "guide", "two", *options)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_step_that_compares_examples_is_evaluated_on_whole_batches(tmp_path, library):
    options = (f"library={library}", "variant=3", "loss=mean")
    _, _, weights, _, one = train(tmp_path / "one", "guide", "one", *options)
    model = of_batches.guide(3, library=library)
    model.set_weights(weights)
    x = of_batches.rows()[1][0]
    losses = []
    for batch in (x[:8], x[8:]):
        scores = model(batch) @ np.transpose(model(batch))
        losses.append(float(tf.reduce_mean(tf.reduce_logsumexp(scores, axis=1))))
    assert one["loss"] == pytest.approx((8 * losses[0] + 5 * losses[1]) / 13, rel=1e-5)
    two = train(tmp_path / "two", "guide", "two", *options)[4]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_model_of_texts_trains_alike_on_two_devices(tmp_path, library):
    options = (f"library={library}", "dataset.num_classes=2", "dataset.label_kind=number")
    one = train(tmp_path / "one", "of_texts", "one", *options, data="texts")
    two = train(tmp_path / "two", "of_texts", "two", *options, data="texts")
    assert_alike(one[2:], two[2:])
    assert one[4]["loss"] < 0.7


def test_class_weights_of_several_outputs_are_refused_as_in_keras(tmp_path):
    with pytest.raises(
        ConfigError, match=r"task.class_weights cannot be used with several outputs"
    ):
        train(tmp_path, "two_outputs", "one", "task.class_weights={0:2.0}", data="of_two")


FORMS = {
    "jit": ("jit=true",),
    "float16": ("precision=mixed_float16",),
    "whole, jit": ("loss=masked", "jit=true"),
    "whole, accumulate": ("loss=masked", "batch.accumulate=2"),
    "whole, shards": ("loss=masked", "batch.shards=4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("form", FORMS)
def test_loss_is_that_of_fit_with_every_form_of_the_step(tmp_path, library, form):
    loss = [option for option in FORMS[form] if "." not in option and "loss" in option]
    rest = [option for option in FORMS[form] if option not in loss]
    # Of float16 the first updates may be dropped, until the loss scale fits.
    same = [f"++{option}" for option in rest if form == "float16"]
    plain = train(tmp_path / "plain", "net", "one", f"library={library}", *loss, *same)
    engine = train(
        tmp_path / "two", "net", "two", f"library={library}", *loss, *map("++{}".format, rest)
    )
    for one, other in zip(plain[2], engine[2], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-2 if form == "float16" else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_metric_that_does_not_add_up_is_evaluated_as_fit_does(tmp_path, library):
    one = train(tmp_path / "one", "largest", "one", f"library={library}")
    model = of_batches.largest(library=library)
    _, _, tested = of_keras(one[0], model, one[1], {})
    assert one[4] == pytest.approx(tested, rel=1e-5)
    assert one[3].keys() == {"loss", "mae"}
    for layout in ("two", "shards"):
        two = train(tmp_path / layout, "largest", layout, f"library={library}")
        assert_alike(two[2:], one[2:])


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
