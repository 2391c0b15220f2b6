"""What a model cannot be built for is one line that says what to change."""

import pytest

from trainer.models.cnn import cnn
from trainer.models.keras_application import keras_application
from trainer.models.mobilenet import mobilenet
from trainer.models.resnet import resnet
from trainer.models.small_gan import small_discriminator, small_generator
from trainer.models.sngan import sngan_generator
from trainer.models.text_cnn import text_cnn
from trainer.models.transformer import transformer
from trainer.models.transformer_encoder import transformer_encoder
from trainer.models.tutorial_cnn import tutorial_cnn
from trainer.models.unet import unet
from trainer.models.vit import vit

IMAGES = r"takes images \[height, width, channels\], the dataset gives \[64\]"
BACKBONE = r"takes images \[height, width, 1 or 3 channels\], the dataset gives \["
NO_BOTTLENECKS = r"v1_5 \(false\) needs bottlenecks, which imagenet of depth 34 does not have;"


@pytest.mark.parametrize(
    ("build", "shape", "options", "message"),
    [
        (cnn, (64,), {}, rf"cnn {IMAGES}; choose"),
        (tutorial_cnn, (8, 8, 1), {}, r"tutorial_cnn takes images of 28 x 28 x 1, .*; use data"),
        (vit, (64,), {}, rf"vit {IMAGES}"),
        (vit, (8, 10, 1), {}, r"patch \(4\) must divide the sides of the images, the dataset"),
        (vit, (8, 8, 1), {"heads": 3}, r"heads \(3\) must divide width \(128\); change one of the"),
        (unet, (16, 20, 3), {"depth": 3}, r"unet takes images .* sides are multiples of 8"),
        (text_cnn, (8, 8, 1), {}, r"text_cnn takes tokens \[length\], the dataset gives"),
        (transformer, (8, 8, 1), {}, r"transformer takes tokens \[length\], .*=text_windows$"),
        (transformer, (8,), {"width": 8, "heads": 3}, r"heads \(3\) must divide width \(8\)"),
        (transformer_encoder, (8, 8, 1), {}, r"transformer_encoder takes tokens .*dataset=text$"),
        (small_generator, (7, 8, 1), {}, r".* whose sides are multiples of 2"),
        (sngan_generator, (28, 28, 1), {}, r".* whose sides are multiples of 8"),
        (small_discriminator, (784,), {}, r".*\[height, width, channels\],.*\[784\]"),
        (mobilenet, (64,), {}, rf"\w+ {BACKBONE}64"),
        (keras_application, (32, 32, 2), {}, rf"\w+ {BACKBONE}32, 32, 2"),
        (keras_application, (32, 80, 3), {"name": "Xception"},
         r"Xception takes images of at least 71 x 71 .*; add dataset\.image_size=\[71,71\], or"),
        (resnet, (32, 32, 3), {"depth": 18}, r"depth \(18\) must be 6n \+ 2 .*; use 14 or 20$"),
        (resnet, (32, 32, 3), {"variant": "imagenet"}, r"depth \(20\) must be one of 18, 34, 50"),
        (resnet, (32, 32, 3), {"variant": "imagenet", "depth": 34, "v1_5": False}, NO_BOTTLENECKS),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(build, shape, options, message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        build(shape, 10, **options)
    assert "\n" not in str(caught.value)
