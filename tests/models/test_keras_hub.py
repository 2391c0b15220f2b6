import importlib
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.model_runs import train
from trainer.models.keras_hub import keras_hub


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ResNet with random weights, a converter, and a classifier of other classes."""
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="basic_block",
        image_shape=(None, None, 3),
    )
    converter = hub.layers.ResNetImageConverter(scale=[1 / 255, 2 / 255, 3 / 255], offset=-1.0)
    preprocessor = hub.models.ResNetImageClassifierPreprocessor(converter)
    folder = tmp_path_factory.mktemp("preset")
    hub.models.ImageClassifier(
        backbone, num_classes=7, preprocessor=preprocessor, activation="softmax"
    ).save_to_preset(folder)
    return folder


def test_classifier_has_the_weights_and_the_scaling_of_the_preset(preset: Path) -> None:
    hub = pytest.importorskip("keras_hub")
    model = keras_hub((8, 8, 1), 5, preset=str(preset))
    backbone = hub.models.Backbone.from_preset(str(preset))
    images = np.random.RandomState(0).uniform(size=(2, 8, 8, 1)).astype(np.float32)
    scaled = np.repeat(images, 3, -1) * [1, 2, 3] - 1
    classifier = next(layer for layer in model.layers if isinstance(layer, hub.models.Task))
    np.testing.assert_allclose(classifier.backbone(scaled), backbone(scaled), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(images), classifier(scaled), rtol=1e-5, atol=1e-5)
    assert model(images).shape == (2, 5)


def test_classifier_is_trained(preset: Path, tmp_path: Path) -> None:
    state = train(tmp_path, "model=keras_hub", f"model.preset={preset}")
    assert all(np.isfinite(value).all() for value in state.values())


def test_precision_is_that_of_the_run(preset: Path) -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = keras_hub((8, 8, 3), 5, preset=str(preset))
    finally:
        keras.config.set_dtype_policy("float32")
    convolutions = [x for x in model._flatten_layers() if isinstance(x, keras.layers.Conv2D)]
    assert {layer.compute_dtype for layer in convolutions} == {"bfloat16"}
    assert model.get_layer("logits").compute_dtype == "float32"


def test_what_does_not_fit_is_refused(preset: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"^preset \(.*\) takes images of \[any, any, 3\], the dataset gives \[64\]",
    ):
        keras_hub((64,), 5, preset=str(preset))
    with pytest.raises(ValueError, match=r"^preset \(.*\) has no config.json; give a folder"):
        keras_hub((8, 8, 1), 5, preset=str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"class_name": "Nothing"}))
    with pytest.raises(
        ValueError, match=r"^preset \(.*\) cannot be loaded as an image classifier: "
    ) as caught:
        keras_hub((8, 8, 1), 5, preset=str(tmp_path))
    assert "\n" not in str(caught.value)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(
        ValueError,
        match=r"^model=keras_hub needs the package keras_hub, which is missing; "
        r"pip install 'steadfast\[keras_hub\]'$",
    ):
        keras_hub((8, 8, 1), 5, preset=str(tmp_path))
