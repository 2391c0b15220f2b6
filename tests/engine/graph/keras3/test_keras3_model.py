"""Models of Keras 3, trained by the engine on several replicas.

tests/differential compares their updates with those of `fit`, and the matrix of tests/end_to_end
their bits on every layout.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import keras3_models
from tests.support.outputs import exported_outputs, predicted_rows
from tests.support.training import (
    CENTRAL,
    LOW_PRECISION_ROUNDING,
    ROUNDING,
    TWO,
    distance,
    finish,
    recipe,
    variables,
)
from trainer.engine.graph.keras3 import keras3_random
from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.engine.graph.randomness.draws import convert_draws
from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, fold_seed
from trainer.engine.graph.state.weight_paths import weights_of
from trainer.engine.graph.step.assignments import pass_values, value_to_sum
from trainer.engine.initial_weights import restore_weights
from trainer.errors import ConfigError


@pytest.fixture(autouse=True)
def restored_precision():
    """Undo what a run sets for the whole process."""
    yield
    tf.keras.mixed_precision.set_global_policy("float32")
    keras.config.set_dtype_policy("float32")


def options(model, *overrides):
    """Return the command line of a short training."""
    return [
        "model=softmax", "~model.l2", f"model._target_=tests.support.keras3_models.{model}",
        "dataset=digits", "train.steps=5", "batch.global_size=16", "writers=[jsonl]", *overrides,
    ]  # fmt: skip


def engine(run_dir, model, *overrides):
    return recipe(run_dir, *options(model, *overrides))


def train(run_dir, model, *overrides):
    return finish(engine(run_dir, model, *overrides))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "tolerance"),
    [
        (("precision=mixed_float16",), LOW_PRECISION_ROUNDING),
        (("batch.accumulate=2", "jit=true", "divergence.action=skip"), ROUNDING),
    ],
)
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


def test_forward_pass_outside_of_a_step_changes_nothing():
    model = Keras3Model(keras3_models.conv_net((8, 8, 1), 10))
    before = [v.numpy() for v in model.variables]
    model(np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32), training=True)
    assert all((v.numpy() == old).all() for v, old in zip(model.variables, before, strict=True))


TEXTS = ("task=language_model", "dataset=sentences", "dataset.characters=2000", "dataset.length=8")
SHAPES = (
    "task=segmentation", "dataset=shapes", "dataset.num_examples=48", "dataset.num_test=20",
    "dataset.image_size=[16,16]",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("task", "model"), [(TEXTS, "per_token"), (SHAPES, "per_pixel")])
def test_subclassed_model_trains_in_tasks_that_check_its_shape(tmp_path, task, model):
    run = engine(tmp_path, model, *task, "train.steps=3", *TWO)
    before = variables(run)
    assert run.train(lambda: False)
    after = variables(run)
    names = [name for name in before if name.startswith("/models/model/")]
    assert len(names) == len(run.state.task.models["model"].variables)
    assert all((before[name] != after[name]).any() for name in names)


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


LORA = ("train.lora.rank=2", "train.lora.layers=[body]")


def weights(run):
    """Return the values by path, and which of them are trained."""
    model = next(iter(run.state.task.models.values()))
    ids = {id(variable) for variable in model.trainable_variables}
    paths = {weight.path: weight.container for weight in weights_of({"model": model})}
    trained = [path for path, variable in paths.items() if id(variable) in ids]
    return {path: variable.numpy() for path, variable in paths.items()}, trained


@pytest.mark.slow
def test_adapters_and_head_are_trained_and_the_rest_keeps_the_bits_of_a_run(tmp_path):
    train(tmp_path / "run", "named", "train.steps=2")
    tuned = engine(tmp_path / "tuned", "named", *LORA, "train.freeze=['^(?!head)']")
    text, _ = restore_weights(tmp_path / "run", tuned.state.task.models, ["lora"])
    assert text == (
        f"8 of 10 weights from step 2 of {tmp_path / 'run'}; "
        "fresh: body/lora_kernel_a, body/lora_kernel_b"
    )
    before, trained = weights(tuned)
    assert trained == ["body/lora_kernel_a", "body/lora_kernel_b", "head/kernel", "head/bias"]
    tuned.train(lambda: False)
    after, _ = weights(tuned)
    changed = [path for path in before if not np.array_equal(before[path], after[path])]
    assert changed == trained


@pytest.mark.slow
def test_export_of_adapters_predicts_what_the_run_predicts(tmp_path):
    chosen = (*LORA, *TWO, "train.steps=2", "checkpoint.every_steps=2")
    train(tmp_path, "named", *chosen)
    rows = predicted_rows(tmp_path, options("named", *chosen))
    values = [[float(row[f"probability_{n}"]) for n in range(10)] for row in rows]
    outputs, _ = exported_outputs(tmp_path, options("named", *chosen), 16)
    np.testing.assert_allclose(outputs["probabilities"], values, rtol=0, atol=1e-6)
    assert np.std(values, axis=0).max() > 1e-3


@pytest.mark.parametrize(
    ("model", "overrides", "problem"),
    [
        ("spectral", (), "SpectralNormalization"),
        ("raw_variable", ("+model.held_by=dict",), "reads the variable raw.*/own_scale:0"),
        ("raw_variable", ("+model.held_by=closure", "jit=true"),
         "reads the variable raw.*/own_scale:0"),
        ("recomputing", (), "keras.remat gives the weights within it no"),
        ("float8", (), "float8 keeps its scales as gradients"),
        ("conv_net", ("strategy=mirrored", "strategy.devices_per_replica=2",
                      "strategy.virtual_devices=2"), "divides models of tf_keras alone"),
        ("conv_net", ("+model.synchronized=true", "jit=true"), "jit cannot be used with Keras 3's"),
        ("conv_net", ("train.lora.rank=2", "train.lora.layers=[covn]"), "covn.* matches no weight"),
        ("conv_net", ("train.lora.rank=2",), "train.lora.layers .'.'.: dense.* constraints"),
        ("conv_net", ("train.lora.rank=2", "model._target_=trainer.models.softmax.softmax"),
         r"train.lora.rank \(2\) needs a model of Keras 3"),
    ],
)  # fmt: skip
def test_unsupported_model_is_refused_in_one_line(tmp_path, model, overrides, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        train(tmp_path, model, *overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("model", "shapes"), [
    ("deferred", [(64, 10), (10,)]),
    ("unbuilt", [(64, 8), (8,), (8, 8), (8,), (8, 10), (10,)]),
])  # fmt: skip
def test_model_without_input_is_built(tmp_path, model, shapes):
    run = engine(tmp_path, model, "train.steps=1")
    assert [tuple(v.shape) for v in run.state.task.models["model"].variables] == shapes


DRAWS = {
    "uniform": lambda n, seed: keras.random.uniform((n, 3), -1.0, seed=seed),
    "normal": lambda n, seed: keras.random.normal((n, 3), stddev=2.0, seed=seed),
    "truncated_normal": lambda n, seed: keras.random.truncated_normal((n, 6), seed=seed),
    "randint": lambda n, seed: keras.random.randint((n, 3), 0, 1000, seed=seed),
    "categorical": lambda n, seed: keras.random.categorical(keras.ops.ones((n, 9)), 4, seed=seed),
    "dropout": lambda n, seed: keras.random.dropout(
        keras.ops.ones((n, 9, 3)), 0.5, (n, None, 1), seed=seed
    ),
    "gamma": lambda n, seed: keras.random.gamma((n, 3), 2.0, seed=seed),
}


@pytest.mark.parametrize("is_fixed", [False, True], ids=["drawn", "fixed"])
@pytest.mark.parametrize("name", DRAWS)
def test_functions_of_keras_draw_for_the_part_of_the_batch(name, is_fixed):
    keras3_random.convert_draws()
    convert_draws()
    generator = keras.random.SeedGenerator(1)

    def drawn(number, parts, step=0):
        with batch_part(BatchPart(lambda: fold_seed(7, step), 12 // parts, number, parts)):
            return np.asarray(DRAWS[name](12 // parts, 3 if is_fixed else generator))

    whole, (first, second) = drawn(0, 1), [drawn(number, 2) for number in range(2)]
    assert (first != second).any()
    np.testing.assert_array_equal(drawn(0, 2), first)
    assert (drawn(0, 1, step=1) == whole).all() == is_fixed
    if name != "gamma":  # of which each part draws its own
        np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    assert generator.state.numpy().tolist() == [1, 0]


def test_draw_for_each_row_is_refused():
    keras3_random.convert_draws()

    @tf.function(autograph=False)
    def step(rows):
        with batch_part(BatchPart(lambda: fold_seed(7, 0), 12, 0)):
            return keras.ops.vectorized_map(lambda row: keras.random.dropout(row, 0.5), rows)

    with pytest.raises(ConfigError, match=r"dropout of keras\.random is called in vectorized_map"):
        step(tf.ones([12, 3]))


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
