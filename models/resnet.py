"""Residual networks of any depth, for small images and for ImageNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Lt, OneOf, Semantic
from trainer.models.layers.inputs import require_images

_EPSILON = 1e-5
_STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks in each stage by depth, of a network for ImageNet (He et al. 2016, table 1)."""
_BOTTLENECK_DEPTH = 50


def resnet(  # noqa: PLR0913 - every option is a key of the configuration
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    variant: Annotated[str, OneOf("cifar", "imagenet")] = "cifar",
    depth: Annotated[int, Ge(8)] = 20,
    v1_5: bool = True,
    zero_gamma: bool = False,
    momentum: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.9,
    synchronized: Annotated[bool, Semantic()] = False,
    l2: Annotated[float, Ge(0), Semantic()] = 0.0,
) -> tf.keras.Model:
    """Build a residual network (He, Zhang, Ren and Sun, CVPR 2016) from images to logits [B, C].

    `cifar` is that of section 4.2 of the paper, `imagenet` that of its table 1; `v1_5` and
    `zero_gamma` are from Goyal et al. 2017. Images should be normalized.
    """
    require_images("resnet", input_shape)
    stages = _stages(variant, depth)
    if not v1_5 and (variant == "cifar" or depth < _BOTTLENECK_DEPTH):
        raise ValueError(
            f"v1_5 (false) needs bottlenecks, which {variant} of depth {depth} does not have; "
            f"leave it out, or use variant=imagenet and a depth from {_BOTTLENECK_DEPTH} on"
        )
    regularizer = tf.keras.regularizers.L2(l2) if l2 else None
    gamma = "zeros" if zero_gamma else "ones"
    layers = _Layers(regularizer, momentum, synchronized, gamma, v1_5)
    inputs = tf.keras.Input(input_shape, name="features")
    if variant == "cifar":
        x = _cifar(layers, inputs, stages)
    else:
        x = _imagenet(layers, inputs, stages, bottleneck=depth >= _BOTTLENECK_DEPTH)
    x = tf.keras.layers.GlobalAveragePooling2D(name="pool")(x)
    outputs = tf.keras.layers.Dense(
        num_classes, kernel_regularizer=regularizer, dtype="float32", name="logits"
    )(x)
    return tf.keras.Model(inputs, outputs, name=f"resnet{depth}")


def _stages(variant: str, depth: int) -> Sequence[int]:
    """Return the number of blocks in each stage."""
    if variant == "imagenet":
        if depth not in _STAGES:
            raise ValueError(
                f"depth ({depth}) must be one of {', '.join(map(str, _STAGES))} where variant is "
                "imagenet"
            )
        return _STAGES[depth]
    if rest := (depth - 2) % 6:
        raise ValueError(
            f"depth ({depth}) must be 6n + 2 where variant is cifar; use {depth - rest} or "
            f"{depth - rest + 6}"
        )
    return [(depth - 2) // 6] * 3


_Block = Callable[[tf.Tensor, int, int, str], tf.Tensor]
"""Computes a tensor from another: with what width or channels, stride and name."""


def _cifar(layers: _Layers, images: tf.Tensor, stages: Sequence[int]) -> tf.Tensor:
    """Three stages from 16 channels, with shortcuts without parameters (option A)."""
    x = _relu(layers.convolve(images, 16, 3, 1, "stem"), "stem")
    return _blocks(x, 16, stages, layers.basic, _pad)


def _imagenet(
    layers: _Layers, images: tf.Tensor, stages: Sequence[int], *, bottleneck: bool
) -> tf.Tensor:
    """A stem that makes images four times smaller, and four stages from 64 channels.

    Shortcuts are projections where the shape changes (option B).
    """
    x = _relu(layers.convolve(images, 64, 7, 2, "stem"), "stem")
    x = tf.keras.layers.ZeroPadding2D(1, name="stem_pool_pad")(x)
    x = tf.keras.layers.MaxPooling2D(3, 2, name="stem_pool")(x)
    block = layers.bottleneck if bottleneck else layers.basic
    return _blocks(x, 64, stages, block, layers.project)


def _blocks(
    x: tf.Tensor, width: int, stages: Sequence[int], block: _Block, shortcut: _Block
) -> tf.Tensor:
    """Apply the blocks of all stages: each but the first has twice the width and half the image."""
    for stage, num_blocks in enumerate(stages):
        for number in range(num_blocks):
            stride = 2 if stage and not number else 1
            name = f"stage{stage + 1}_block{number + 1}"
            residual = block(x, width << stage, stride, name)
            if stride != 1 or x.shape[-1] != residual.shape[-1]:
                x = shortcut(x, residual.shape[-1], stride, name)
            x = _relu(tf.keras.layers.Add(name=f"{name}_add")([residual, x]), name)
    return x


@dataclass(frozen=True)
class _Layers:
    """Convolutions with normalization, and the blocks that are made of them.

    Attributes:
        last_gamma: initializer of the scale of each block's last normalization.
        v1_5: whether bottlenecks halve the image in their 3 x 3 convolution, not in the first.
    """

    regularizer: tf.keras.regularizers.L2 | None
    momentum: float
    synchronized: bool
    last_gamma: str
    v1_5: bool

    def basic(self, x: tf.Tensor, width: int, stride: int, name: str) -> tf.Tensor:
        """Apply two 3 x 3 convolutions."""
        x = _relu(self.convolve(x, width, 3, stride, f"{name}_1"), f"{name}_1")
        return self.convolve(x, width, 3, 1, f"{name}_2", self.last_gamma)

    def bottleneck(self, x: tf.Tensor, width: int, stride: int, name: str) -> tf.Tensor:
        """Apply a 1 x 1, a 3 x 3 and a 1 x 1 convolution, the last to four times the width."""
        first, second = (1, stride) if self.v1_5 else (stride, 1)
        x = _relu(self.convolve(x, width, 1, first, f"{name}_1"), f"{name}_1")
        x = _relu(self.convolve(x, width, 3, second, f"{name}_2"), f"{name}_2")
        return self.convolve(x, 4 * width, 1, 1, f"{name}_3", self.last_gamma)

    def project(self, x: tf.Tensor, channels: int, stride: int, name: str) -> tf.Tensor:
        """Return a shortcut by a 1 x 1 convolution (option B)."""
        return self.convolve(x, channels, 1, stride, f"{name}_shortcut")

    def convolve(
        self, x: tf.Tensor, filters: int, size: int, stride: int, name: str, gamma: str = "ones"
    ) -> tf.Tensor:
        """Convolve without bias, and normalize.

        Images are padded by as much on either side, as in the literature: "same" of TensorFlow
        pads one side more where the stride is 2.
        """
        if size > 1:
            x = tf.keras.layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(x)
        x = tf.keras.layers.Conv2D(
            filters,
            size,
            stride,
            use_bias=False,
            # Of variance 2 / fan_out (He et al. 2015, equation 14).
            kernel_initializer=tf.keras.initializers.VarianceScaling(2.0, "fan_out"),
            kernel_regularizer=self.regularizer,
            name=f"{name}_conv",
        )(x)
        return tf.keras.layers.BatchNormalization(
            momentum=self.momentum,
            epsilon=_EPSILON,
            gamma_initializer=gamma,
            synchronized=self.synchronized,
            name=f"{name}_norm",
        )(x)


def _relu(x: tf.Tensor, name: str) -> tf.Tensor:
    return tf.keras.layers.ReLU(name=f"{name}_relu")(x)


def _pad(x: tf.Tensor, channels: int, stride: int, name: str) -> tf.Tensor:
    """Return a shortcut without parameters: fewer pixels, and new channels of zeros (option A)."""
    x = tf.keras.layers.AveragePooling2D(1, stride, name=f"{name}_shortcut")(x)
    return tf.pad(x, [[0, 0], [0, 0], [0, 0], [0, channels - x.shape[-1]]])
