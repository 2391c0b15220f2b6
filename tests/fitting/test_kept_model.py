"""What names a model's file, what comes back, and what cannot be kept."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.fitting.kept_model import KeptModel
from trainer.models.saved import saved

KINDS = {"tf_keras": tf.keras, "keras": keras}


def small(kind: str, *, units: int = 3, rate: float = 0.1) -> Any:
    library = KINDS[kind]
    model = library.Sequential(
        [library.layers.Input([4]), library.layers.LSTM(2), library.layers.Dense(units)]
        if units > 8
        else [library.layers.Input([4]), library.layers.Dense(2), library.layers.Dense(units)]
    )
    model.compile(library.optimizers.SGD(rate), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("kind", list(KINDS))
def test_file_is_named_by_what_the_model_is(kind: str, tmp_path: Path) -> None:
    model = small(kind)
    first = KeptModel(model, tmp_path)
    again = KeptModel(small(kind), tmp_path)  # other weights, and layers of other names
    assert first.path == again.path
    assert first.options == again.options
    assert first.options["fresh"] == [0, 1, 2, 3]
    assert first.name == "sequential"
    assert KeptModel(small(kind, rate=0.2), tmp_path).path != first.path
    assert KeptModel(small(kind, units=4), tmp_path).path != first.path
    model.weights[2].assign(np.ones([2, 3]))
    trained = KeptModel(model, tmp_path)
    assert trained.path != first.path
    assert trained.options["fresh"] == [0, 1, 3]
    model.weights[2].assign(np.zeros([2, 3]))
    assert KeptModel(model, tmp_path).path not in (trained.path, first.path)


@pytest.mark.parametrize("kind", list(KINDS))
def test_run_builds_the_compiled_model_and_draws_fresh_weights(kind: str, tmp_path: Path) -> None:
    model = small(kind)
    model.weights[2].assign(np.ones([2, 3]))
    kept = KeptModel(model, tmp_path)
    built = saved((4,), 1, **kept.options)
    assert isinstance(built, KINDS[kind].Model)
    assert built.loss == "mse"
    assert float(built.optimizer.learning_rate) == pytest.approx(0.1)
    np.testing.assert_array_equal(built.weights[2], np.ones([2, 3]))
    assert not np.array_equal(built.weights[0], model.weights[0])
    loaded = kept.load()
    np.testing.assert_array_equal(loaded.weights[0], model.weights[0])
    with pytest.raises(ValueError, match=r"^path \(.*\) has changed: its SHA-256 is "):
        saved((4,), 1, **{**kept.options, "sha256": "0"})


class Doubled(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return 2.0 * inputs


def own_loss(label: Any, output: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(label - output), axis=-1)


def test_own_classes_and_functions_are_named_where_they_are(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.Input([4]), Doubled(), keras.layers.Lambda(lambda x: x + 1), keras.layers.Dense(2)]
    )
    model.compile("sgd", own_loss)
    kept = KeptModel(model, tmp_path)
    assert kept.options["allow"] == [f"{__name__}.Doubled", f"{__name__}.own_loss"]
    built = saved((4,), 1, **kept.options)
    assert type(built.layers[0]) is Doubled
    assert built.loss is own_loss


class Narrow(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(5)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


def test_classes_that_take_no_further_keywords_are_built(tmp_path: Path) -> None:
    model = Narrow()
    model.compile("sgd", "mse")
    model(np.zeros([1, 4]))
    built = saved((4,), 1, **KeptModel(model, tmp_path).options)
    assert type(built) is Narrow
    assert [weight.shape for weight in built.weights] == [(4, 5), (5,)]


def refused(model: Any, folder: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        KeptModel(model, folder)
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


class OwnCompile(keras.Model):
    def compile(self, optimizer: Any, critic: Any) -> None:
        super().compile(optimizer)
        self.critic = critic


class Pair(keras.Model):
    def __init__(self, first: Any) -> None:
        super().__init__()
        self.first = first


class Broken(keras.layers.Layer):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def get_config(self) -> dict[str, Any]:
        return {}


class Wide(tf.keras.Model):
    def __init__(self, units: int = 1) -> None:
        super().__init__()
        self.dense = tf.keras.layers.Dense(units)


def test_models_that_keras_would_write_wrongly_are_refused(tmp_path: Path) -> None:
    refused(keras.Sequential(), tmp_path, r"^model \(sequential.*\) must be compiled; ")
    refused(np.ones(3), tmp_path, r"^model \(ndarray\) must be a compiled Keras model, or a ")
    own = OwnCompile()
    own.compile("sgd", None)
    refused(own, tmp_path, r"^model \(OwnCompile\) has a compile of its own, whose arguments ")
    pair = Pair(small("keras"))
    pair.compile("sgd", "mse")
    refused(pair, tmp_path, r"^model \(Pair\) has no get_config, .* does not keep first; add ")
    broken = keras.Sequential([keras.Input([4]), Broken(2.0)])
    broken.compile("sgd", "mse")
    refused(broken, tmp_path, r"^model \(Sequential\) is of classes that Keras does not write and ")
    wide = Wide(5)
    wide.compile("sgd", "mse")
    refused(wide, tmp_path, r"^model \(Wide\) has no get_config, .* does not keep units; add ")

    class Local(keras.layers.Layer):
        pass

    local = keras.Sequential([keras.Input([4]), Local()])
    local.compile("sgd", "mse")
    refused(local, tmp_path, r"^Local \(.*<locals>.Local\) cannot be imported by the processes ")
