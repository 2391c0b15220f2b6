import numpy as np
import pytest

from trainer.models.keras_hub import keras_hub


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
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


@pytest.mark.slow
def test_classifier_has_the_weights_and_the_scaling_of_the_preset(preset):
    hub = pytest.importorskip("keras_hub")
    model = keras_hub((8, 8, 1), 5, preset=str(preset))
    backbone = hub.models.Backbone.from_preset(str(preset))
    images = np.random.RandomState(0).uniform(size=(2, 8, 8, 1)).astype(np.float32)
    scaled = np.repeat(images, 3, -1) * [1, 2, 3] - 1
    classifier = next(layer for layer in model.layers if isinstance(layer, hub.models.Task))
    np.testing.assert_allclose(classifier.backbone(scaled), backbone(scaled), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(images), classifier(scaled), rtol=1e-5, atol=1e-5)
    assert model(images).shape == (2, 5)


TEXT = {"vocabulary_size": 300, "num_layers": 1, "num_heads": 2, "hidden_dim": 8}


@pytest.fixture(scope="module")
def text_presets(tmp_path_factory):
    """A tiny BERT and a tiny GPT-2 with random weights."""
    hub = pytest.importorskip("keras_hub")
    folder = tmp_path_factory.mktemp("texts")
    for name, base in (("bert", "BertBackbone"), ("gpt", "GPT2Backbone")):
        sizes = {**TEXT, "intermediate_dim": 16, "max_sequence_length": 16}
        getattr(hub.models, base)(**sizes).save_to_preset(folder / name)
    return {name: str(folder / name) for name in ("bert", "gpt")}


def test_text_classifier_has_the_weights_and_ignores_the_padding(text_presets):
    hub = pytest.importorskip("keras_hub")
    model = keras_hub((6,), 3, preset=text_presets["bert"])
    backbone = hub.models.Backbone.from_preset(text_presets["bert"])
    tokens = np.array([[6, 3, 9, 0, 0, 0]])
    kernel, bias = (weight.numpy() for weight in model.weights[-2:])
    inputs = {"token_ids": tokens - 1, "padding_mask": tokens > 0, "segment_ids": 0 * tokens}
    inputs["token_ids"] = np.maximum(inputs["token_ids"], 0)
    expected = np.asarray(backbone(inputs)["pooled_output"]) @ kernel + bias
    np.testing.assert_allclose(model(tokens), expected, rtol=1e-4, atol=1e-5)
    shorter = keras_hub((3,), 3, preset=text_presets["bert"])
    shorter.set_weights(model.get_weights())
    np.testing.assert_allclose(shorter(tokens[:, :3]), model(tokens), rtol=1e-4, atol=1e-5)


def test_language_model_is_that_of_the_preset_and_does_not_look_ahead(text_presets):
    hub = pytest.importorskip("keras_hub")
    model = keras_hub((6,), 256, preset=text_presets["gpt"], head="language_model")
    own = hub.models.CausalLM.from_preset(text_presets["gpt"], preprocessor=None)
    tokens = np.array([[6, 3, 9, 250, 0, 2]])
    expected = own({"token_ids": tokens, "padding_mask": np.ones_like(tokens)})[..., :256]
    np.testing.assert_allclose(model(tokens), expected, rtol=1e-4, atol=1e-5)
    changed = tokens.copy()
    changed[0, 4:] = 7
    np.testing.assert_allclose(model(changed)[:, :4], expected[:, :4], rtol=1e-4, atol=1e-5)
