"""The networks: their parameters, their structure, and what they cannot be built for."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.models.cnn import cnn
from trainer.models.keras_application import keras_application
from trainer.models.mobilenet import mobilenet
from trainer.models.resnet import resnet
from trainer.models.softmax import softmax
from trainer.models.text_cnn import text_cnn
from trainer.models.transformer import transformer
from trainer.models.transformer_encoder import transformer_encoder
from trainer.models.tutorial_cnn import tutorial_cnn
from trainer.models.unet import unet
from trainer.models.vit import vit

RESNET_18 = {"variant": "imagenet", "depth": 18}
RESNET_50 = {"variant": "imagenet", "depth": 50}
VIT = {"patch": 4, "width": 16, "layers": 2, "heads": 2, "hidden": 64}
VIT_BLOCK = 2 * 2 * 16 + 4 * (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16)
# A level of c channels from i has 9ic + 9cc in convolutions and 8c of normalization; the way up
# also 4(2c)c + c.
UNET_DOWN = (9 * 3 * 4 + 9 * 16 + 32) + (9 * 4 * 8 + 9 * 64 + 64) + (9 * 8 * 16 + 9 * 256 + 128)
UNET_UP = (4 * 16 * 8 + 8 + 9 * 16 * 8 + 9 * 64 + 64) + (4 * 8 * 4 + 4 + 9 * 8 * 4 + 9 * 16 + 32)
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("build", "shape", "options", "num_parameters"),
    [
        (softmax, (8, 8, 1), {}, 64 * 10 + 10),
        (softmax, (5,), {}, 5 * 10 + 10),
        (cnn, (8, 8, 1), {}, 99_178),
        (cnn, (1, 1, 3), {}, 75_178),
        (tutorial_cnn, (28, 28, 1), {}, 2_770_634),
        (tutorial_cnn, (784,), {}, 2_770_634),
        (vit, (8, 12, 3), VIT, 4 * 4 * 3 * 16 + 16 + 6 * 16 + 2 * VIT_BLOCK + 2 * 16 + 170),
        (unet, (16, 24, 3), {"width": 4, "depth": 2}, UNET_DOWN + UNET_UP + 4 * 10 + 10),
        # As published, of 1000 classes, and the moving statistics of the normalizations.
        (resnet, (32, 32, 3), {"depth": 8}, 75_290 + 480),
        pytest.param(resnet, (32, 32, 3), {"depth": 20}, 269_722 + 1376, marks=slow),
        pytest.param(resnet, (64, 64, 3), RESNET_18, 11_689_512 - 990 * 513 + 9600, marks=slow),
        pytest.param(resnet, (64, 64, 3), RESNET_50, 25_557_032 - 990 * 2049 + 53_120, marks=slow),
        pytest.param(mobilenet, (224, 224, 3), {}, 2_257_984 + 1280 * 10 + 10, marks=slow),
        pytest.param(mobilenet, (224, 224, 3), {"outputs": 1000}, 3_538_984, marks=slow),
    ],
)
def test_models_have_logits_and_the_expected_parameters(build, shape, options, num_parameters):
    model = build(shape, 10, **options)
    logits = model(tf.random.stateless_uniform([3, *shape], seed=[0, 0]))
    positions = shape[:-1] if build is unet else ()
    assert (logits.shape, logits.dtype) == (
        (3, *positions, options.get("outputs", 10)),
        tf.float32,
    )
    assert model.count_params() == num_parameters
    assert (np.asarray(logits) < 0).any(), "probabilities, not logits"
    assert not model.losses


@pytest.mark.parametrize(
    ("build", "options"),
    [(softmax, {}), (cnn, {}), (tutorial_cnn, {}), (resnet, {"depth": 8})],
)
def test_l2_adds_a_loss_per_kernel(build, options):
    model = build((28, 28, 1), 10, l2=0.5, **options)
    kernels = [variable for variable in model.trainable_variables if "kernel" in variable.name]
    assert len(model.losses) == len(kernels)
    expected = sum(0.5 * np.square(kernel.numpy()).sum() for kernel in kernels)
    # Sums of up to 100,000 squares, in any order: sqrt(n) * 2**-24 is 2e-5.
    np.testing.assert_allclose(sum(float(loss) for loss in model.losses), expected, rtol=2e-5)


def norms_of(model):
    return [x for x in model.layers if isinstance(x, tf.keras.layers.BatchNormalization)]


@pytest.mark.slow
@pytest.mark.parametrize("synchronized", [True, False])
def test_batch_normalization_is_synchronized_or_not(synchronized):
    options = {"momentum": 0.5, "synchronized": synchronized}
    application = keras_application((8, 8, 1), 10, name="MobileNet", **options)
    for model in (application, resnet((8, 8, 3), 10, depth=8, **options)):
        found = {(x.momentum, x.synchronized) for x in norms_of(model)}
        assert found == {(0.5, synchronized)}
    assert {x.fused for x in norms_of(application)} == {not synchronized}


def test_zero_gamma_makes_each_block_the_identity():
    model = resnet((8, 8, 1), 10, depth=14, zero_gamma=True)
    names = ("stem_relu", "stage1_block2_relu", "stage2_block1_relu")
    inner = tf.keras.Model(model.input, [model.get_layer(name).output for name in names])
    images = tf.random.stateless_uniform([2, 8, 8, 1], seed=[0, 0])
    before, after, halved = inner(images, training=True)
    np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(halved[..., :16], after[:, ::2, ::2])
    assert not np.any(halved[..., 16:])


def test_patches_are_distinguished_by_their_positions():
    model = vit((8, 8, 1), 10, width=16, layers=1, heads=2)
    image = np.random.RandomState(0).uniform(size=(1, 8, 8, 1)).astype(np.float32)
    turned = np.roll(image, 4, axis=1)
    assert np.abs(model(image) - model(turned)).max() > 1e-6
    model.get_layer("positions").positions.assign(tf.zeros([4, 16]))
    np.testing.assert_allclose(model(image), model(turned), atol=1e-5)


def test_logits_of_texts_are_the_maxima_over_the_text():
    model = text_cnn((6,), 3, vocabulary=5, width=4, kernels=[1], dropout=0.5)
    tokens = tf.constant([[1, 2, 3, 4, 0, 0], [4, 3, 2, 1, 0, 0]])
    logits = model(tokens, training=False)
    assert (logits.shape, logits.dtype) == ((2, 3), tf.float32)
    # Kernels of one token do not see the order.
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-6)
    embedded = tf.nn.embedding_lookup(model.get_layer("embedding").embeddings, tokens[0])
    maxima = tf.reduce_max(model.get_layer("conv0")(embedded[None]), axis=1)
    np.testing.assert_allclose(model.get_layer("logits")(maxima)[0], logits[0], atol=1e-6)


SMALL = {"vocabulary": 11, "layers": 2, "width": 8, "heads": 2, "hidden": 16}
TOKENS = np.array([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]], np.int32)


def test_decoder_sees_no_later_token():
    model = transformer((6,), 11, **SMALL)
    logits = model(TOKENS, training=False).numpy()
    assert (logits.shape, logits.dtype) == ((2, 6, 11), np.float32)
    changed = TOKENS.copy()
    changed[:, 4:] = 9
    others = model(changed, training=False).numpy()
    np.testing.assert_allclose(others[:, :4], logits[:, :4], atol=1e-6)
    assert np.abs(others[:, 4:] - logits[:, 4:]).max() > 1e-3


def test_encoder_does_not_see_padding():
    model = transformer_encoder((6,), 3, **SMALL)
    embedding = model.get_layer("embedding").tokens
    tokens = np.array([[1, 2, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0]], np.int32)
    before = model(tokens, training=False).numpy()
    assert (before.shape, before.dtype) == ((2, 3), np.float32)
    assert np.isfinite(before).all()
    embedding.assign(tf.tensor_scatter_nd_add(embedding, [[0]], tf.ones([1, 8])))
    after = model(tokens, training=False).numpy()
    np.testing.assert_allclose(after[0], before[0], atol=1e-6)


def test_tied_logits_use_the_embedding_of_tokens():
    tied = transformer((6,), 10, **SMALL)
    free = transformer((6,), 10, tied=False, **SMALL)
    assert tied.output_shape == free.output_shape == (None, 6, 10)
    assert free.count_params() - tied.count_params() == 8 * 10 + 10
    x = tied.get_layer("norm").output
    hidden = tf.keras.Model(tied.input, x)(TOKENS, training=False)
    expected = hidden.numpy() @ tied.get_layer("embedding").tokens.numpy()[:10].T
    np.testing.assert_allclose(tied(TOKENS, training=False), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "shape", "options", "message"),
    [
        (vit, (8, 10, 1), {}, r"patch \(4\) must divide the sides of the images, the dataset"),
        (unet, (16, 20, 3), {"depth": 3}, r"unet takes images .* sides are multiples of 8"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(build, shape, options, message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        build(shape, 10, **options)
    assert "\n" not in str(caught.value)
