"""Generators and discriminators, and spectral normalization."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.models.layers.spectral import SpectralConv2D, SpectralDense
from trainer.models.small_gan import small_discriminator, small_generator
from trainer.models.sngan import sngan_discriminator, sngan_generator


def size_of(model):
    return sum(int(tf.size(weight)) for weight in model.trainable_variables)


@pytest.mark.parametrize(
    ("build", "shape", "options", "num_parameters"),
    [
        (small_generator, (8, 8, 1), {}, None),
        (small_generator, (6, 4, 3), {"latent": 5, "width": 4, "batch_norm": False}, None),
        # Table 4 of Miyato et al. 2018, added up by hand.
        (sngan_generator, (32, 32, 3), {}, 4_276_739),
        (sngan_generator, (16, 8, 1), {"latent": 6, "width": 4}, None),
    ],
)
def test_generators_make_images_of_the_shape(build, shape, options, num_parameters):
    model = build(shape, 10, **options)
    assert model.input_shape == (None, options.get("latent", model.input_shape[1]))
    images = model(tf.random.stateless_normal([3, model.input_shape[1]], seed=[0, 0])).numpy()
    assert (images.shape, images.dtype) == ((3, *shape), np.float32)
    assert 0.0 <= images.min() < images.max() <= 1.0
    norms = [layer.synchronized for layer in model.layers if hasattr(layer, "synchronized")]
    assert set(norms) == ({True} if options.get("batch_norm", True) else set())
    assert num_parameters in (None, size_of(model))


@pytest.mark.parametrize(
    ("build", "shape", "num_parameters"),
    [(small_discriminator, (8, 8, 1), None), (sngan_discriminator, (32, 32, 3), 1_053_825)],
)
def test_discriminators_score_images_and_all_their_kernels_are_normalized(
    build, shape, num_parameters
):
    model = build(shape, 1)
    scores = model(tf.zeros([3, *shape]))
    assert (scores.shape, scores.dtype) == ((3, 1), tf.float32)
    with_kernel = [layer for layer in model.layers if hasattr(layer, "kernel")]
    assert all(isinstance(layer, SpectralConv2D | SpectralDense) for layer in with_kernel)
    vectors = [x for x in model.non_trainable_variables if "singular_vector" in x.name]
    assert len(vectors) == len(with_kernel)
    assert num_parameters in (None, size_of(model))


LAYERS = {
    "dense": (lambda: SpectralDense(4), (6,)),
    "convolution": (lambda: SpectralConv2D(4, 3, 2, padding="same"), (5, 5, 3)),
}


def built(name):
    make, shape = LAYERS[name]
    layer = make()
    layer.build([None, *shape])
    return layer, shape


def singular_values(kernel):
    return np.linalg.svd(np.asarray(kernel).reshape(-1, kernel.shape[-1]), compute_uv=False)


@pytest.mark.parametrize("name", LAYERS)
def test_power_iteration_finds_the_spectral_norm(name):
    layer, shape = built(name)
    for _ in range(100):
        layer.before_update()
    norm = singular_values(layer.kernel)[0]
    largest = singular_values(layer.normalized(tf.convert_to_tensor(layer.kernel)).numpy())[0]
    # The estimate converges as (s2 / s1) ** 200.
    np.testing.assert_allclose(largest, 1.0, rtol=1e-4)
    inputs = tf.random.stateless_normal([2, *shape], seed=[0, 0])
    outputs = layer(inputs)
    layer.kernel.assign(layer.kernel / norm)
    np.testing.assert_allclose(outputs, layer(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_is_that_of_the_quotient_with_constant_singular_vectors(name):
    layer, _ = built(name)
    layer.before_update()
    matrix = tf.reshape(layer.kernel, [-1, 4]).numpy().astype(np.float64)
    u = tf.math.l2_normalize(layer.singular_vector).numpy().astype(np.float64)
    upstream = np.random.default_rng(0).normal(size=matrix.shape)
    with tf.GradientTape() as tape:
        normalized = tf.reshape(layer.normalized(tf.convert_to_tensor(layer.kernel)), [-1, 4])
        loss = tf.reduce_sum(normalized * upstream.astype(np.float32))
    got = tf.reshape(tape.gradient(loss, layer.kernel), [-1, 4])
    sigma = np.linalg.norm(matrix @ u)
    v = matrix @ u / sigma
    # Equation 9 of the paper: the gradient of sigma is the outer product of both vectors.
    wanted = (upstream - (upstream * matrix / sigma).sum() * np.outer(v, u)) / sigma
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
