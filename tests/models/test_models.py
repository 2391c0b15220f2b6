from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from trainer.models.cnn import cnn
from trainer.models.softmax import softmax
from trainer.models.tutorial_cnn import tutorial_cnn


@pytest.mark.parametrize(
    ("build", "input_shape", "num_parameters"),
    [
        (softmax, (8, 8, 1), 64 * 10 + 10),
        (softmax, (5,), 5 * 10 + 10),
        (cnn, (8, 8, 1), 99_178),
        (cnn, (1, 1, 3), 75_178),
        (tutorial_cnn, (28, 28, 1), 2_770_634),
        (tutorial_cnn, (784,), 2_770_634),
    ],
)
def test_models_have_logits_and_the_expected_parameters(
    build: Callable[..., tf.keras.Model], input_shape: tuple[int, ...], num_parameters: int
) -> None:
    model = build(input_shape, 10)
    logits = model(tf.random.stateless_uniform([3, *input_shape], seed=[0, 0]))
    assert (logits.shape, logits.dtype) == ((3, 10), tf.float32)
    assert model.count_params() == num_parameters
    assert (np.asarray(logits) < 0).any(), "probabilities, not logits"
    assert not model.losses


@pytest.mark.parametrize("build", [softmax, cnn, tutorial_cnn])
def test_l2_adds_a_loss_per_kernel(build: Callable[..., tf.keras.Model]) -> None:
    model = build((28, 28, 1), 10, l2=0.5)
    kernels = [variable for variable in model.trainable_variables if "kernel" in variable.name]
    assert len(model.losses) == len(kernels)
    expected = sum(0.5 * np.square(kernel.numpy()).sum() for kernel in kernels)
    # Sums of up to 100,000 squares, in any order: sqrt(n) * 2**-24 is 2e-5.
    np.testing.assert_allclose(sum(float(loss) for loss in model.losses), expected, rtol=2e-5)


def test_cnn_options_change_the_network() -> None:
    narrow = cnn((8, 8, 1), 10, width=4, dropout=0.0)
    assert narrow.count_params() < 2500
    image = tf.random.stateless_uniform([1, 8, 8, 1], seed=[0, 0])
    np.testing.assert_array_equal(narrow(image, training=True), narrow(image, training=False))
    normed = cnn((8, 8, 1), 10, width=4, batch_norm=True)
    assert len(normed.non_trainable_variables) == 8
