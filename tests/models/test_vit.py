import numpy as np
import tensorflow as tf

from trainer.models.vit import vit


def test_network_has_the_parameters_of_its_parts() -> None:
    model = vit((8, 12, 3), 10, patch=4, width=16, layers=2, heads=2, hidden=64)
    block = 2 * 2 * 16 + 4 * (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16)
    patches = 4 * 4 * 3 * 16 + 16
    assert model.count_params() == patches + 6 * 16 + 2 * block + 2 * 16 + 16 * 10 + 10
    logits = model(tf.random.stateless_uniform([3, 8, 12, 3], seed=[0, 0]))
    assert (logits.shape, logits.dtype) == ((3, 10), tf.float32)


def test_patches_are_told_apart_by_their_positions() -> None:
    model = vit((8, 8, 1), 10, width=16, layers=1, heads=2)
    image = np.random.RandomState(0).uniform(size=(1, 8, 8, 1)).astype(np.float32)
    turned = np.roll(image, 4, axis=1)
    assert np.abs(model(image) - model(turned)).max() > 1e-6
    model.get_layer("positions").positions.assign(tf.zeros([4, 16]))
    np.testing.assert_allclose(model(image), model(turned), atol=1e-5)
