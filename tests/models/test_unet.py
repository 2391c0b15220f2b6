"""A U-Net: its shapes and its parameters."""

import tensorflow as tf

from trainer.models.unet import unet


def test_unet_has_logits_of_each_pixel_and_the_expected_parameters():
    model = unet((16, 24, 3), 5, width=4, depth=2)
    assert model.output_shape == (None, 16, 24, 5)
    logits = model(tf.random.stateless_uniform([2, 16, 24, 3], [0, 1]))
    assert logits.dtype == tf.float32
    # A level of c channels from i has 9ic + 9cc in convolutions and 8c of normalization; the way up
    # also 4(2c)c + c.
    down = (9 * 3 * 4 + 9 * 16 + 32) + (9 * 4 * 8 + 9 * 64 + 64)
    middle = 9 * 8 * 16 + 9 * 256 + 128
    up = (4 * 16 * 8 + 8 + 9 * 16 * 8 + 9 * 64 + 64) + (4 * 8 * 4 + 4 + 9 * 8 * 4 + 9 * 16 + 32)
    assert model.count_params() == down + middle + up + 4 * 5 + 5
