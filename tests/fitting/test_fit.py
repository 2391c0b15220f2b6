"""`fit` from this process to the trained model, what it passes on, and its keys."""

import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.programs.compiled_classifier import build, examples
from trainer import fit
from trainer.cli.compose import compose
from trainer.errors import ConfigError
from trainer.fitting import fit as fitting
from trainer.fitting.fit import overrides_of
from trainer.notebook import Run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_trained_model_is_that_of_the_last_evaluation(capfd):
    x, y = examples()
    model = build()
    before = [np.array(weight) for weight in model.weights]
    run = fit(model, (x, y), validation=(x[:40], y[:40]), epochs=2, batch_size=40, seed=1)
    assert run.metrics["loss"] == run.history["val_loss"][-1]
    loss, accuracy = run.model().evaluate(x[:40], y[:40], verbose=0)
    assert loss == pytest.approx(run.history["val_loss"][-1], rel=1e-4)
    assert accuracy == pytest.approx(run.history["val_accuracy"][-1])
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert run.directory.name.startswith("sequential-")
    assert "Run directory: runs/sequential-" in capfd.readouterr().out


def numbers():
    x = np.random.default_rng(0).normal(size=[50, 4]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(16)


def endless():
    while True:
        yield from numbers().take(3).as_numpy_iterator()


def test_batches_in_python_are_counted_or_given(composed):
    def twice():
        yield from numbers().as_numpy_iterator()

    fit(build, twice)
    fit(build, endless, validation=numbers(), steps_per_epoch=3)
    fit(build, numbers, train__steps=7)
    chosen = ("num_examples", "batched", "label_kind")
    assert [tuple(one.dataset[key] for key in chosen) for one in composed] == [
        (50, True, None), (48, True, None), (50, True, None),
    ]  # fmt: skip
    assert [one.batch.global_size for one in composed] == [16] * 3
    assert composed[1].train.steps_per_epoch == 3
    with pytest.raises(ConfigError, match=r"^data is a tf.data.Dataset without an end; give steps"):
        fit(build, lambda: numbers().repeat())
    with pytest.raises(ConfigError, match=r"^validation \(0.1\) is a fraction, and the data are "):
        fit(build, numbers(), validation=0.1)


@pytest.fixture
def composed(tmp_path, monkeypatch):
    """The experiments of calls of `fit`, which train nothing."""
    experiments = []

    def run(*overrides, import_from):
        experiments.append(compose(list(overrides)))
        return Run(tmp_path, 0)

    monkeypatch.setattr(fitting, "run", run)
    return experiments


def test_functions_are_passed_by_their_names(composed):
    fit(build, examples, validation=0.25, strategy="mirrored", strategy__virtual_devices=2)
    (experiment,) = composed
    place = "tests.programs.compiled_classifier"
    assert experiment.model == {"_target_": f"{place}.build"}
    assert experiment.dataset["data"] == {"_target_": f"{place}.examples", "_partial_": True}
    assert experiment.dataset["validation"] == 0.25
    assert experiment.strategy["virtual_devices"] == 2
    assert experiment.choices is not None
    assert experiment.choices["task"] == "keras"
    assert (experiment.name, experiment.train.epochs) == ("build", 3)
    assert (experiment.batch.global_size, experiment.summary.every_epochs) == (128, 1)


def test_batches_of_a_dataset_are_those_of_a_step(composed):
    data = tf.data.Dataset.from_tensor_slices(examples()).batch(50)
    fit(build, data, validation=data.take(1))
    fit(build, data, batch_size=20, batch__global_size=10, train__steps=7, optimizer="sgd")
    assert [experiment.batch.global_size for experiment in composed] == [50, 10]
    assert "held_out" in composed[0].dataset
    assert (composed[1].train.steps, composed[1].train.epochs) == (7, None)
    assert composed[1].optimizer is not None


class Lazy(keras.Model):
    """Has no variables before it is called."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)


def test_model_that_a_function_builds_lazily_has_its_weights(composed):
    def make():
        model = Lazy()
        model.compile("sgd", "mse")
        return model

    x, y = examples()
    stream = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    for data in ((x, y), examples, stream, lambda: tf.data.Dataset.from_tensors((x, y))):
        assert [w.shape for w in fit(make, data).build().weights] == [(8, 3), (3,)]
    assert composed[0].model is not None
    assert composed[0].model["_target_"] == "trainer.fitting.carried.model"


optimizer = keras.optimizers.SGD(0.1)


class OfSteps(keras.Model):
    """Cannot be called with the data; its optimizer is a variable of the module."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.head = keras.layers.Dense(1)

    def call(self, tables):
        (table,) = tables
        return self.head(table)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            logs = self.test_step(data)
        gradients = tape.gradient(logs["loss"], self.trainable_variables)
        optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return logs

    def test_step(self, data):
        targets = data.pop("target")
        outputs = tf.gather(self([self.table]), data["number"])
        return {"loss": self.compute_loss(y=targets, y_pred=outputs)}


@pytest.mark.slow
def test_model_that_its_steps_build_is_trained_and_evaluated():
    table = np.random.default_rng(0).normal(size=[80, 3]).astype(np.float32)
    model = OfSteps(tf.constant(table))
    model.compile(optimizer, "mse")
    data = {"number": np.arange(80), "target": table[:, :1]}
    run = fit(model, data, validation=0.25, epochs=2, batch_size=20)
    assert run.history["val_loss"][-1] < run.history["val_loss"][0]
    assert run.history["loss"][-1] < run.history["loss"][0]
    assert run.model().head.kernel.shape == (3, 1)


def test_early_stopping_watches_what_keras_watches(composed):
    stop = "callbacks.early_stopping"
    fit(build, examples, validation=0.25, callbacks="early_stopping")
    fit(build, examples, callbacks="early_stopping", **{f"{stop}.metric": "accuracy"})
    fit(build, examples, **{stop: {"metric": "accuracy"}, "callbacks": "early_stopping"})
    found = [(experiment.callbacks or {})["early_stopping"]["metric"] for experiment in composed]
    assert found == ["loss", "accuracy", "accuracy"]


def test_wrong_arguments_are_refused_before_anything_is_kept(composed, tmp_path):
    with pytest.raises(ConfigError, match=r"^runs_dir \(s3://b\) is an object store, where fit "):
        fit(build, examples, runs_dir="s3://b")
    with pytest.raises(ConfigError, match=r"^model \(str\) must be a compiled Keras model, or a "):
        fit("model", examples)
    assert list(tmp_path.iterdir()) == []


def test_keys_are_those_of_the_configuration():
    keys = {
        "checkpoint": {"every_steps": 50, "best": {"metric": "accuracy"}},
        "optimizer": "sgd",
        "optimizer__momentum": 0.5,
        "optimizer__groups": {"a [b]/": {"momentum": 0.0}},
        "predict__path": "it's\\",
        "model__name": "1",
        "writers": ["jsonl"],
        "callbacks": ["early_stopping", "reduce_on_plateau"],
        "jit": True,
        "train__clip_norm": None,
        "task": "keras",
        "task__class_weights": {0: np.float64(1.0), 1: np.int64(5)},
    }
    defaults = {"train.epochs": 3, "batch.global_size": 64, "model": "softmax"}
    experiment = compose([*overrides_of({**keys, "train__steps": 9}, defaults), "~model.name"])
    assert experiment.checkpoint.every_steps == 50
    assert experiment.checkpoint.best.metric == "accuracy"
    assert experiment.optimizer["groups"] == {"a [b]/": {"momentum": 0.0}}
    assert experiment.optimizer["momentum"] == 0.5
    assert experiment.predict.path == "it's\\"
    assert experiment.task["class_weights"] == {0: 1.0, 1: 5}
    assert list(experiment.writers) == ["jsonl"]
    assert list(experiment.callbacks) == ["early_stopping", "reduce_on_plateau"]
    assert experiment.jit
    assert (experiment.train.steps, experiment.train.epochs) == (9, None)
    assert experiment.batch.global_size == 64
    assert "++model.name='1'" in overrides_of(keys, {})


def test_importing_fit_imports_no_tensorflow():
    code = "import sys, trainer; early = [*sys.modules]; from trainer import fit; "
    code += "print('trainer.fitting' in early, 'tensorflow' in sys.modules, fit.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False False fit\n"
    with pytest.raises(ImportError, match=re.escape("cannot import name 'fits'")):
        from trainer import fits  # noqa: F401
