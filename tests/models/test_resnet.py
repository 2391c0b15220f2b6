import numpy as np
import pytest
import tensorflow as tf

from trainer.models.resnet import resnet


def trainable(model: tf.keras.Model) -> int:
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "depth", "num_parameters"),
    [
        ("cifar", 8, 75_290),
        ("cifar", 20, 269_722),
        ("imagenet", 18, 11_689_512),
        ("imagenet", 50, 25_557_032),
    ],
)
def test_networks_have_as_many_parameters_as_the_published_ones(
    variant: str, depth: int, num_parameters: int
) -> None:
    shape, classes = ((224, 224, 3), 1000) if variant == "imagenet" else ((32, 32, 3), 10)
    model = resnet(shape, classes, variant=variant, depth=depth)
    assert trainable(model) == num_parameters
    assert model.output.shape == (None, classes)
    last = model.get_layer("pool").input.shape
    assert last[1:3] == ((7, 7) if variant == "imagenet" else (8, 8))


def strides(model: tf.keras.Model) -> dict[str, int]:
    return {
        layer.name: layer.strides[0]
        for layer in model.layers
        if isinstance(layer, tf.keras.layers.Conv2D) and layer.strides[0] > 1
    }


@pytest.mark.slow
@pytest.mark.parametrize(("v1_5", "place"), [(True, "2"), (False, "1")])
def test_bottlenecks_halve_the_image_in_their_3_x_3_or_first_convolution(
    v1_5: bool, place: str
) -> None:
    model = resnet((64, 64, 3), 10, variant="imagenet", depth=50, v1_5=v1_5)
    assert strides(model) == {
        "stem_conv": 2,
        **{f"stage{n}_block1_{part}_conv": 2 for n in (2, 3, 4) for part in (place, "shortcut")},
    }
    assert model.get_layer("stage2_block1_2_conv").kernel_size == (3, 3)


def test_zero_gamma_makes_each_block_the_identity() -> None:
    model = resnet((8, 8, 1), 10, depth=14, zero_gamma=True)
    inner = tf.keras.Model(
        model.input,
        [model.get_layer("stem_relu").output, model.get_layer("stage1_block2_relu").output],
    )
    before, after = inner(tf.random.stateless_uniform([2, 8, 8, 1], seed=[0, 0]), training=True)
    np.testing.assert_array_equal(before, after)
    stage2 = tf.keras.Model(model.input, model.get_layer("stage2_block1_relu").output)
    halved = stage2(tf.random.stateless_uniform([2, 8, 8, 1], seed=[0, 0]), training=True)
    np.testing.assert_array_equal(halved[..., :16], after[:, ::2, ::2])
    assert not np.any(halved[..., 16:])


def test_options_reach_every_layer() -> None:
    model = resnet((8, 8, 3), 10, depth=8, momentum=0.5, synchronized=True, l2=0.25)
    norms = [
        layer for layer in model.layers if isinstance(layer, tf.keras.layers.BatchNormalization)
    ]
    assert {(layer.momentum, layer.synchronized) for layer in norms} == {(0.5, True)}
    kernels = [variable for variable in model.trainable_variables if "kernel" in variable.name]
    assert len(kernels) == len(model.losses) == 8
    expected = sum(0.25 * np.square(kernel.numpy()).sum() for kernel in kernels)
    np.testing.assert_allclose(sum(map(float, model.losses)), expected, rtol=2e-5)
