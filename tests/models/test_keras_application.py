import typing
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tf_keras.src.utils import data_utils

from trainer.models import keras_application as module
from trainer.models.keras_application import keras_application
from trainer.models.layers.backbones import load_weights

IMAGES = np.random.RandomState(0).uniform(size=(2, 32, 32, 3)).astype(np.float32)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
FAMILIES = sorted(
    {
        getattr(tf.keras.applications, name).__module__.rpartition(".")[2]
        for name in typing.get_args(module.Name)
    }
)


def test_names_are_those_of_the_library() -> None:
    names = {name for name in vars(tf.keras.applications) if name[0].isupper()}
    assert set(typing.get_args(module.Name)) == names


def published(name: str, file: Path) -> tf.keras.Model:
    """Return a network of the library with random statistics; write its weights."""
    network = getattr(tf.keras.applications, name)(
        include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg"
    )
    draws = np.random.RandomState(1)
    for layer in network.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.moving_mean.assign(draws.uniform(-0.1, 0.1, layer.moving_mean.shape))
            layer.moving_variance.assign(draws.uniform(0.5, 1.5, layer.moving_mean.shape))
    network.save_weights(file)
    return network


def scaled_by_the_library(family: str) -> np.ndarray:
    if family == "efficientnet":
        # Its network without published weights only divides by 255.
        return 255 * (IMAGES - MEAN) / STD
    return getattr(tf.keras.applications, family).preprocess_input(IMAGES * 255)


@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_scaled_as_the_library_does(family: str) -> None:
    scaled = module.scale_images(tf.constant(IMAGES), family)
    np.testing.assert_allclose(scaled, scaled_by_the_library(family), rtol=1e-5, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "MobileNet",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("EfficientNetB0", "RegNetX002")),
    ],
)
def test_network_with_weights_equals_the_one_of_the_library(name: str, tmp_path: Path) -> None:
    network = published(name, tmp_path / "weights.h5")
    model = keras_application((32, 32, 3), 10, name=name, weights=str(tmp_path / "weights.h5"))
    features = tf.keras.Model(model.input, model.get_layer("logits").input)(IMAGES)
    family = getattr(tf.keras.applications, name).__module__.rpartition(".")[2]
    expected = network(scaled_by_the_library(family).astype(np.float32)).numpy()
    np.testing.assert_allclose(features, expected, atol=1e-4 * np.abs(expected).max())
    assert model(IMAGES).shape == (2, 10)


@pytest.mark.slow
def test_published_weights_are_those_of_the_size_of_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / ".keras" / "models"
    cache.mkdir(parents=True)
    network = published("MobileNet", cache / "mobilenet_1_0_128_tf_no_top.h5")
    model = keras_application((128, 128, 1), 10, name="MobileNet", weights="imagenet")
    for weight in network.weights:
        layer = model.get_layer(weight.name.partition("/")[0])
        (same,) = (other for other in layer.weights if other.name == weight.name)
        np.testing.assert_array_equal(weight, same)


def test_missing_network_is_one_line_with_address_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_file(fname: str, origin: str, **_: object) -> None:
        raise Exception(f"URL fetch failure on {origin}: None -- unreachable")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(data_utils, "get_file", get_file)
    with pytest.raises(
        ValueError, match=rf"https://.*_no_top\.h5.*{tmp_path}/.keras/models"
    ) as refused:
        keras_application((32, 32, 3), 10, name="MobileNet", weights="imagenet")
    assert "\n" not in str(refused.value)


def test_layers_with_other_automatic_names_are_loaded_in_order(tmp_path: Path) -> None:
    def network() -> tf.keras.Model:
        inputs = tf.keras.Input([4])
        return tf.keras.Model(inputs, tf.keras.layers.Dense(3)(tf.keras.layers.Dense(3)(inputs)))

    saved, other = network(), network()
    saved.save_weights(tmp_path / "weights.h5")
    load_weights(other, tmp_path / "weights.h5")
    for a, b in zip(saved.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_batch_normalization_is_synchronized_or_not() -> None:
    for synchronized in (True, False):
        model = keras_application(
            (8, 8, 1), 10, name="MobileNet", momentum=0.5, synchronized=synchronized
        )
        norms = [x for x in model.layers if isinstance(x, tf.keras.layers.BatchNormalization)]
        assert {(x.momentum, x.synchronized, x.fused) for x in norms} == {
            (0.5, synchronized, not synchronized)
        }
