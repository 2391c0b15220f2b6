"""Models of Keras 3, trained by the engine on several replicas."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import keras3_models
from tests.support.training import (
    LOW_PRECISION_ROUNDING,
    ROUNDING,
    assert_same_bits,
    distance,
    finish,
    recipe,
    variables,
)
from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.engine.graph.step.assignments import pass_values, value_to_sum
from trainer.errors import ConfigError

TWO = ("strategy=mirrored", "strategy.virtual_devices=2")
FOUR = ("strategy=mirrored", "strategy.virtual_devices=4")
CENTRAL = ("strategy=central_storage", "strategy.virtual_devices=2")


@pytest.fixture
def restored_precision():
    """Undo what a run sets for the whole process."""
    yield
    tf.keras.mixed_precision.set_global_policy("float32")
    keras.config.set_dtype_policy("float32")


def options(model, *overrides):
    """Return the command line of a short training."""
    return [
        "model=softmax",
        "~model.l2",
        f"model._target_=tests.support.keras3_models.{model}",
        "dataset=digits",
        "train.steps=5",
        "batch.global_size=16",
        "writers=[jsonl]",
        *overrides,
    ]


def engine(run_dir, model, *overrides):
    return recipe(run_dir, *options(model, *overrides))


def train(run_dir, model, *overrides):
    return finish(engine(run_dir, model, *overrides))


@pytest.mark.slow
def test_with_shards_replicas_have_the_bits_of_one_device(tmp_path):
    chosen = ("conv_net", "batch.shards=4", "train.steps=2")
    one = train(tmp_path / "one", *chosen)
    assert_same_bits(one, train(tmp_path / "four", *chosen, *FOUR))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "overrides", "layout"),
    [("conv_net", ["+model.synchronized=true"], TWO), ("subclassed", [], FOUR)],
)
def test_without_shards_replicas_agree_with_one_device(tmp_path, model, overrides, layout):
    chosen = ("train.ema_decay=0.9", "train.clip_norm=0.1", *overrides)
    alone = engine(tmp_path / "one", model, *chosen)
    initial = variables(alone)
    alone.train(lambda: False)
    other = train(tmp_path / "other", model, *chosen, *layout)
    assert distance(variables(alone), other, initial) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "tolerance"),
    [
        (("precision=mixed_float16",), LOW_PRECISION_ROUNDING),
        (("batch.accumulate=2", "jit=true", "divergence.action=skip"), ROUNDING),
    ],
)
@pytest.mark.usefixtures("restored_precision")
def test_what_tf_keras_cannot_do_under_central_storage_trains(tmp_path, overrides, tolerance):
    # Not Adam: it takes the gradient of a bias without effect, mere rounding, for one. No dropout:
    # XLA draws other numbers.
    chosen = ("optimizer=sgd", "optimizer.learning_rate=0.05", "train.steps=3", "+model.dropout=0")
    plain = [item for item in overrides if "accumulate" in item]  # what tf_keras can do as well
    run = engine(tmp_path / "plain", "conv_net", *chosen, *CENTRAL, *plain)
    initial = variables(run)
    expected = finish(run)
    run = engine(tmp_path / "run", "conv_net", *chosen, *CENTRAL, *overrides)
    assert distance(expected, finish(run), initial) <= tolerance
    if run.state.loss_scale is not None:
        assert int(run.state.loss_scale.good_steps.numpy()) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("restored_precision")
def test_overflow_drops_the_update_and_halves_the_scale_under_central_storage(tmp_path):
    run = engine(tmp_path, "conv_net", "precision=mixed_float16", "train.steps=1", *CENTRAL)
    scale = run.state.loss_scale.value
    scale.assign(2.0**100)  # the gradient of a loss of 1 overflows
    before = variables(run)
    run.train(lambda: False)
    after = variables(run)
    changed = {name for name in after if after[name].tobytes() != before[name].tobytes()}
    # Statistics are moved by the forward pass.
    unchanged = {f"/models/model/{number}" for number in range(6)}
    assert unchanged <= after.keys() - changed
    assert not [name for name in changed if "slots" in name]
    assert float(scale.numpy()) == 2.0**99


@pytest.mark.slow
def test_one_step_is_that_of_keras(tmp_path):
    run = engine(
        tmp_path, "conv_net", "+model.dropout=0.0", "optimizer=sgd", "optimizer.momentum=0.0",
        "optimizer.learning_rate=0.1", "train.steps=1",
    )  # fmt: skip
    task = run.state.task
    model = task.models["model"]._model
    before = [v.numpy() for v in model.weights]
    iterator = run.loop.feed.open(0)
    with run.loop.replica_batch(tf.constant(0, tf.int64), run.loop.feed.next(iterator)) as batch:
        with tf.GradientTape() as tape:
            logits = model(batch["features"], training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
            )
            loss += tf.add_n(model.losses)
        keras.optimizers.SGD(0.1).apply(
            tape.gradient(loss, [v.value for v in model.trainable_variables]),
            model.trainable_variables,
        )
    expected = [v.numpy() for v in model.weights]
    for variable, value in zip(model.weights, before, strict=True):
        variable.assign(value)
    run.train(lambda: False)
    for variable, value in zip(model.weights, expected, strict=True):
        assert np.abs(variable.numpy() - value).max() < 1e-6
    moved = [np.abs(value - old).max() > 1e-3 for value, old in zip(expected, before, strict=True)]
    # The bias of the convolution has no effect before batch normalization.
    assert moved == [name != "1_bias" for name in task.models["model"].saved]


@pytest.mark.slow
def test_constraint_holds_after_an_update(tmp_path):
    run = engine(tmp_path, "conv_net", "optimizer.learning_rate=1.0", *TWO)
    run.train(lambda: False)
    kernel = run.state.task.models["model"].trainable_variables[-2].numpy()
    norms = np.linalg.norm(kernel, axis=0)
    assert norms.max() <= 0.5 + 1e-6
    assert np.sum(norms > 0.5 - 1e-6) > 1


@pytest.mark.parametrize("model", ["conv_net", "subclassed"])
def test_model_has_the_input_that_it_was_called_with(model):
    function = getattr(keras3_models, model)
    assert Keras3Model(function((8, 8, 1), 10)).input_shape == (None, 8, 8, 1)


def test_forward_pass_outside_of_a_step_changes_nothing():
    model = Keras3Model(keras3_models.conv_net((8, 8, 1), 10))
    before = [v.numpy() for v in model.variables]
    model(np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32), training=True)
    assert all((v.numpy() == old).all() for v, old in zip(model.variables, before, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "model"),
    [
        pytest.param(("task=language_model", "dataset=sentences", "dataset.characters=2000",
                      "dataset.length=8"), "per_token", marks=pytest.mark.slow),
        (("task=segmentation", "dataset=shapes", "dataset.num_examples=48", "dataset.num_test=20",
          "dataset.image_size=[16,16]"), "per_pixel"),
    ],
)  # fmt: skip
def test_subclassed_model_trains_in_tasks_that_ask_for_its_shape(tmp_path, task, model):
    run = engine(tmp_path, model, *task, "train.steps=3", *TWO)
    before = variables(run)
    assert run.train(lambda: False)
    after = variables(run)
    names = [name for name in before if name.startswith("/models/model/")]
    assert len(names) == len(run.state.task.models["model"].variables)
    assert all((before[name] != after[name]).any() for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "needed"),
    [(("task=language_model", "dataset=sentences", "dataset.characters=2000"), "of each token"),
     (("task=segmentation", "dataset=shapes"), "a logit of each class for each pixel")],
)  # fmt: skip
def test_subclassed_model_of_another_shape_is_refused(tmp_path, task, needed):
    with pytest.raises(ConfigError, match=needed):
        train(tmp_path, "flat", *task)


def test_losses_of_layers_and_weights_are_those_of_keras():
    features = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32)
    for function in (keras3_models.subclassed, keras3_models.conv_net):
        own = function((8, 8, 1), 10)
        model = Keras3Model(own)
        model(features, training=False)
        losses = [float(loss) for loss in model.losses]
        own(features, training=False)
        assert sorted(losses) == pytest.approx(sorted(float(loss) for loss in own.losses))
        assert losses
        assert min(losses) > 0


def test_forward_pass_notes_its_statistics_as_values_or_differences():
    model = Keras3Model(keras3_models.conv_net((8, 8, 1), 10))
    features = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32)
    moving = [v for v in model.non_trainable_variables if "moving" in v.name]
    results = []
    for differences in (False, True):
        with pass_values(model, moving) as noted:
            model(features, training=True)
        assert list(noted) == list(map(id, moving))
        results.append(
            [
                value_to_sum(*x, notes=True, differences=differences)
                for x in zip(moving, noted.values(), strict=True)
            ]
        )
    for variable, value, difference in zip(moving, *results, strict=True):
        assert np.abs(value - variable.numpy()).max() > 1e-3
        np.testing.assert_allclose(value - variable.numpy(), difference, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "overrides", "problem"),
    [
        ("unseeded", (), "keras.random.normal was called with no seed"),
        ("spectral", (), "SpectralNormalization"),
        ("raw_variable", ("+model.held_by=dict",), "reads the variable raw.*/own_scale:0"),
        ("raw_variable", ("+model.held_by=closure", "jit=true"),
         "reads the variable raw.*/own_scale:0"),
        ("raw_closure", (), "reads the variable own_scale"),
        ("asking", ("batch.shards=2", *TWO), r"Asking.call\(\) asks in Python"),
        ("recomputing", ("+model.scope=true",), "keras.remat gives the weights within it no"),
        ("float8", (), "float8 keeps its scales as gradients"),
        ("uncallable", (), "Uncallable\\) has no variables yet, and .* fails: ValueError: Kernel"),
        ("conv_net", ("strategy=mirrored", "strategy.devices_per_replica=2",
                      "strategy.virtual_devices=2"), "divides models of tf_keras alone"),
        ("conv_net", ("+model.synchronized=true", "jit=true"), "jit cannot be used with Keras 3's"),
        (
            "conv_net",
            ("optimizer._target_=tests.support.keras3_models.optimizer", "~optimizer.beta_1",
             "~optimizer.beta_2", "~optimizer.epsilon"),
            "is an optimizer of Keras 3",
        ),
    ],
)  # fmt: skip
def test_unsupported_model_is_refused_in_one_line(tmp_path, model, overrides, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        train(tmp_path, model, *overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_variables_that_nothing_trains_are_no_strangers(tmp_path):
    run = engine(tmp_path, "counting", "train.steps=1", *TWO)
    assert run.train(lambda: False)


@pytest.mark.parametrize(("model", "shapes"), [
    ("deferred", [(64, 10), (10,)]),
    ("unbuilt", [(64, 8), (8,), (8, 8), (8,), (8, 10), (10,)]),
])  # fmt: skip
def test_model_without_input_is_built(tmp_path, model, shapes):
    run = engine(tmp_path, model, "train.steps=1")
    assert [tuple(v.shape) for v in run.state.task.models["model"].variables] == shapes


def test_constraint_of_a_weight_in_pieces_is_refused():
    own = keras3_models.conv_net((8, 8, 1), 10)
    kernel = own.layers[-1].kernel
    pieces = [tf.Variable(part) for part in tf.split(kernel.value, 2)]
    kernel._value = tf.__internal__.distribute.ShardedVariable(pieces)
    with pytest.raises(ConfigError, match="constraint, which cannot be applied to its pieces"):
        Keras3Model(own)


def test_private_names_of_keras_are_there():
    from keras.src.backend import core
    from keras.src.backend import random as backend

    for name in ("uniform", "normal", "randint", "dropout", "truncated_normal", "categorical",
                 "gamma", "binomial", "beta", "shuffle"):  # fmt: skip
        assert "seed" in inspect.signature(getattr(backend, name)).parameters
    assert callable(keras.Layer._flatten_layers)
    assert callable(core.remat)


def test_names_that_keras_hardly_documents_mean_what_is_read_from_them():
    # Most are read with a default, so one that moves would change a model in silence.
    with keras.StatelessScope(collect_losses=True) as scope:
        assert scope.losses == []
    assert keras.random.SeedGenerator(3).state.numpy().tolist() == [3, 0]
    dense = keras3_models.deferred((8, 8, 1), 10).layers[-1]
    dense.build((None, 64))
    assert dense.lora_enabled is False
    dense.enable_lora(2)
    assert dense.lora_enabled is True
    assert {v.name for v in dense.trainable_variables if "lora" not in v.name} == {"bias"}
    float8 = keras3_models.float8((8, 8, 1), 10).weights
    assert any(v.overwrite_with_gradient for v in float8)
    assert not dense.bias.overwrite_with_gradient
    assert keras.layers.BatchNormalization(synchronized=True).synchronized is True
