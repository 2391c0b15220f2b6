"""Networks with published weights: those of Keras, scaling, and files that do not fit."""

import typing

import numpy as np
import pytest
import tensorflow as tf

from trainer.models import keras_application as module
from trainer.models.keras_application import keras_application
from trainer.models.mobilenet import mobilenet

IMAGES = np.random.RandomState(0).uniform(size=(2, 32, 32, 3)).astype(np.float32)
GRAY = np.random.RandomState(0).uniform(size=(2, 8, 40, 1)).astype(np.float32)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
FAMILIES = sorted(
    {
        getattr(tf.keras.applications, name).__module__.rpartition(".")[2]
        for name in typing.get_args(module.Name)
    }
)


def test_names_are_those_of_the_library():
    names = {name for name in vars(tf.keras.applications) if name[0].isupper()}
    assert set(typing.get_args(module.Name)) == names


def published(name, file):
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


def scaled_by_the_library(family):
    if family == "efficientnet":
        # Its network without published weights only divides by 255.
        return 255 * (IMAGES - MEAN) / STD
    return getattr(tf.keras.applications, family).preprocess_input(IMAGES * 255)


@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_scaled_as_the_library_does(family):
    scaled = module.scale_images(tf.constant(IMAGES), family)
    np.testing.assert_allclose(scaled, scaled_by_the_library(family), rtol=1e-5, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNet", "EfficientNetB0", "RegNetX002"])
def test_network_with_weights_equals_the_one_of_the_library(name, tmp_path):
    network = published(name, tmp_path / "weights.h5")
    model = keras_application((32, 32, 3), 10, name=name, weights=str(tmp_path / "weights.h5"))
    features = tf.keras.Model(model.input, model.get_layer("logits").input)(IMAGES)
    family = getattr(tf.keras.applications, name).__module__.rpartition(".")[2]
    expected = network(scaled_by_the_library(family).astype(np.float32)).numpy()
    np.testing.assert_allclose(features, expected, atol=1e-4 * np.abs(expected).max())
    assert model(IMAGES).shape == (2, 10)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A published MobileNetV2 at random, and its weights with and without the top."""
    folder = tmp_path_factory.mktemp("weights")
    full = tf.keras.applications.MobileNetV2(
        input_shape=(32, 40, 3), alpha=0.35, weights=None, classes=7
    )
    full.save_weights(folder / "top.h5")
    bare = tf.keras.Model(full.input, full.get_layer("out_relu").output)
    bare.save_weights(folder / "no_top.h5")
    return bare, folder / "top.h5", folder / "no_top.h5"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "synchronized"), [(1, False), (2, True)], ids=["with top", "without top"]
)
def test_mobilenet_with_weights_equals_the_published_network(narrow, file, synchronized):
    options = {"alpha": 0.35, "weights": str(narrow[file]), "synchronized": synchronized}
    model = mobilenet((8, 40, 1), 10, **options)
    enlarged = tf.image.resize(GRAY, [32, 40])
    expected = narrow[0](tf.repeat(enlarged, 3, axis=-1) * 2 - 1, training=False)
    inner = tf.keras.Model(model.input, model.get_layer("out_relu").output)
    np.testing.assert_allclose(inner(GRAY, training=False), expected, atol=1e-5)
    assert model(GRAY).shape == (2, 10)
    norms = [x for x in model.layers if isinstance(x, tf.keras.layers.BatchNormalization)]
    assert {(layer.momentum, layer.synchronized) for layer in norms} == {(0.9, synchronized)}
