import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.operations import mixing
from trainer.datasets.operations.mixing import Mixing

RANDOM = np.random.RandomState(0)
IMAGES = RANDOM.uniform(size=(4, 6, 8, 1)).astype(np.float32)
LABELS = np.array([0, 2, 1, 1])
OTHER = [1, 0, 3, 2]


def draws(**columns: float) -> tf.Tensor:
    names = ("which", "share", "side", "down", "across")
    return tf.constant([[columns.get(name, 0.5) for name in names]] * 4, tf.float32)


def mix(mixup: float, cutmix: float, numbers: tf.Tensor, **more: object) -> tuple:
    batch = {"features": tf.constant(IMAGES), "label": tf.constant(LABELS), **more}
    mixed = Mixing(mixup, cutmix).apply(batch, numbers, 3)
    return mixed["features"].numpy(), mixed["label"].numpy()


def test_mixup_blends_neighbors_and_their_labels() -> None:
    # Beta(1, 1) is uniform: draw 0.5 below one half is 0.25.
    images, labels = mix(1.0, 0.0, draws(side=0.0))
    np.testing.assert_allclose(images, 0.75 * IMAGES + 0.25 * IMAGES[OTHER], atol=1e-6)
    expected = [[0.75, 0, 0.25], [0.25, 0, 0.75], [0, 1, 0], [0, 1, 0]]
    np.testing.assert_allclose(labels, expected, atol=1e-6)


def test_cutmix_pastes_a_box_of_the_neighbor() -> None:
    images, labels = mix(0.0, 1.0, draws(side=0.0))  # a quarter: half of each side
    expected = IMAGES.copy()
    # 3 x 4 of 6 x 8, about the middle; half a pixel is rounded to even.
    top, bottom = int(np.round(1.5)), int(np.round(4.5))
    expected[:, top:bottom, 2:6] = IMAGES[OTHER][:, top:bottom, 2:6]
    np.testing.assert_array_equal(images, expected)
    share = (bottom - top) * 4 / 48
    np.testing.assert_allclose(labels[0], [1 - share, 0, share], atol=1e-6)


def test_box_at_the_border_counts_what_is_inside() -> None:
    images, labels = mix(0.0, 1.0, draws(side=0.0, down=0.0, across=0.0))
    is_other = (images == IMAGES[OTHER]).all(axis=-1)[0]
    assert is_other[:2, :2].all()
    assert is_other.sum() == 4
    np.testing.assert_allclose(labels[0], [1 - 4 / 48, 0, 4 / 48], atol=1e-6)


def test_both_are_drawn_for_half_of_the_examples() -> None:
    for which, alone in ((0.1, (0.0, 1.0)), (0.9, (1.0, 0.0))):
        numbers = draws(which=which)
        for one, two in zip(mix(1.0, 1.0, numbers), mix(*alone, numbers), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("options", [(1.0, 0.0), (0.0, 1.0)])
def test_example_without_weight_is_not_mixed_in(options: tuple[float, float]) -> None:
    images, labels = mix(*options, draws(), weight=tf.constant([1.0, 0.0, 1.0, 1.0]))
    np.testing.assert_array_equal(images[0], IMAGES[0])
    np.testing.assert_array_equal(labels[0], [1, 0, 0])
    assert not np.array_equal(images[2], IMAGES[2])


@pytest.mark.parametrize("parameter", [0.2, 1.0, 2.0])
def test_beta_has_the_distributions_moments(parameter: float) -> None:
    numbers = tf.constant(RANDOM.uniform(size=200_000), tf.float32)
    sides = tf.constant(RANDOM.uniform(size=200_000), tf.float32)
    sample = mixing.beta(numbers, sides, parameter).numpy().astype(np.float64)
    assert abs(sample.mean() - 0.5) < 0.005
    assert abs(sample.var() - 1 / (4 * (2 * parameter + 1))) < 0.002
    assert sample.min() >= 0
    assert sample.max() <= 1
