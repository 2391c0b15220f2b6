from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf

from trainer.models.keras_application import keras_application
from trainer.models.layers.backbones import load_weights
from trainer.models.mobilenet import mobilenet

IMAGES = np.random.RandomState(0).uniform(size=(2, 8, 40, 1)).astype(np.float32)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> tuple[tf.keras.Model, Path, Path]:
    """A published MobileNetV2 at random, and its weights with and without the top."""
    folder = tmp_path_factory.mktemp("weights")
    full = tf.keras.applications.MobileNetV2(
        input_shape=(32, 40, 3), alpha=0.35, weights=None, classes=7
    )
    full.save_weights(folder / "top.h5")
    bare = tf.keras.Model(full.input, full.get_layer("out_relu").output)
    bare.save_weights(folder / "no_top.h5")
    return bare, folder / "top.h5", folder / "no_top.h5"


@pytest.fixture(scope="module")
def resnet() -> tf.keras.Model:
    return keras_application((32, 32, 3), 10, name="ResNet50")


def features_of(model: tf.keras.Model, layer: str) -> Callable[[np.ndarray], np.ndarray]:
    inner = tf.keras.Model(model.input, model.get_layer(layer).output)
    return lambda images: inner(images, training=False).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "synchronized"), [(1, False), (2, True)], ids=["with top", "without top"]
)
def test_mobilenet_with_weights_equals_the_published_network(
    narrow: tuple[tf.keras.Model, Path, Path], file: int, synchronized: bool
) -> None:
    options = {"alpha": 0.35, "weights": str(narrow[file]), "synchronized": synchronized}
    model = mobilenet((8, 40, 1), 10, **options)
    enlarged = tf.image.resize(IMAGES, [32, 40])
    expected = narrow[0](tf.repeat(enlarged, 3, axis=-1) * 2 - 1, training=False)
    np.testing.assert_allclose(features_of(model, "out_relu")(IMAGES), expected, atol=1e-5)
    assert model(IMAGES).shape == (2, 10)
    norms = [x for x in model.layers if isinstance(x, tf.keras.layers.BatchNormalization)]
    assert {(layer.momentum, layer.synchronized) for layer in norms} == {(0.9, synchronized)}


def test_weights_of_another_width_are_refused(narrow: tuple[tf.keras.Model, Path, Path]) -> None:
    with pytest.raises(
        ValueError, match=r"^weights \(.*no_top\.h5\) does not fit mobilenetv2.*"
    ) as caught:
        mobilenet((32, 32, 3), 10, alpha=0.5, weights=str(narrow[2]))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_weights_of_another_network_are_refused(
    narrow: tuple[tf.keras.Model, Path, Path], resnet: tf.keras.Model
) -> None:
    message = r"^weights \(.*top\.h5\) lacks 107 of the 107 layers of ResNet50, such as conv1_conv$"
    with pytest.raises(ValueError, match=message):
        load_weights(resnet, narrow[1])


def test_load_weights_refuses_missing_and_foreign_files(
    tmp_path: Path, resnet: tf.keras.Model
) -> None:
    with pytest.raises(
        ValueError, match=r"^weights \(.*no\.h5\): no such file; give an HDF5 weights file"
    ):
        load_weights(resnet, tmp_path / "no.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(ValueError, match=r"^weights \(.*text\.h5\) is not an HDF5 file"):
        load_weights(resnet, tmp_path / "text.h5")
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_group("layers")
    with pytest.raises(ValueError, match=r"^weights \(.*empty\.h5\) lacks"):
        load_weights(resnet, tmp_path / "empty.h5")


def test_resnet50_has_the_published_number_of_parameters(resnet: tf.keras.Model) -> None:
    assert resnet.count_params() == 23_587_712 + 2048 * 10 + 10


@pytest.mark.slow
def test_mobilenet_has_the_published_numbers_of_parameters() -> None:
    assert mobilenet((224, 224, 3), 10, outputs=1000).count_params() == 3_538_984
    assert mobilenet((224, 224, 3), 10).count_params() == 2_257_984 + 1280 * 10 + 10


@pytest.mark.slow
def test_outputs_load_the_published_classifier(
    narrow: tuple[tf.keras.Model, Path, Path], tmp_path: Path
) -> None:
    model = mobilenet((8, 40, 1), 5, alpha=0.35, weights=str(narrow[1]), outputs=7)
    with h5py.File(narrow[1]) as file:
        kernel = np.array(file["predictions/predictions/kernel:0"])
    np.testing.assert_array_equal(model.get_layer("predictions").kernel, kernel)
    assert model(IMAGES).shape == (2, 7)
    with pytest.raises(ValueError, match=r"lacks 1 of the \d+ layers of mobilenet, such as predic"):
        mobilenet((8, 40, 1), 5, alpha=0.35, weights=str(narrow[2]), outputs=7)
    with pytest.raises(
        ValueError, match=r"^outputs \(4\) must be at least the number of classes, 5"
    ):
        mobilenet((8, 40, 1), 5, alpha=0.35, outputs=4)
