"""Figures: the confusion matrix, and images with captions."""

import io

import numpy as np
import pytest
from PIL import Image

from trainer.summaries import figures


@pytest.mark.parametrize("size", [1, 61])
def test_confusion_matrix_fits_any_number_of_classes(size):
    picture = figures.confusion_matrix(np.eye(size), [str(number) for number in range(size)])
    assert max(picture.shape) < 2000


@pytest.mark.parametrize("channels", [1, 3])
def test_add_captions_keeps_the_pixels_of_images(channels):
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 6, channels), dtype=np.uint8)
    captioned = figures.add_captions(images, ["3 -> 8 (0.97)", ""])
    assert (captioned.dtype, captioned.shape[0], captioned.shape[3]) == (np.uint8, 2, 3)
    factor = 16  # up to at least 96 pixels
    left = (captioned.shape[2] - 6 * factor) // 2
    picture = captioned[:, : 8 * factor, left : left + 6 * factor]
    np.testing.assert_array_equal(
        picture[:, ::factor, ::factor], np.broadcast_to(images, (2, 8, 6, 3))
    )
    caption = captioned[:, 8 * factor :]
    assert (caption[0] < 128).any()
    assert (caption[1] == 255).all()


def test_add_captions_does_not_enlarge_large_images():
    assert figures.add_captions(np.zeros((1, 300, 400, 3), np.uint8), ["a"]).shape[2] == 400


@pytest.mark.parametrize("channels", [1, 3])
def test_image_grid_keeps_the_pixels_row_by_row(channels):
    images = np.random.default_rng(0).integers(0, 255, (5, 8, 6, channels), dtype=np.uint8)
    grid = figures.image_grid(images, 3)
    factor = 6  # to at least 32 pixels
    height, width = 8 * factor, 6 * factor
    assert (grid.dtype, grid.shape) == (np.uint8, (2 * height + 1, 3 * width + 2, 3))
    for number, image in enumerate(images):
        top = number // 3 * (height + 1)
        left = number % 3 * (width + 1)
        tile = grid[top : top + height, left : left + width]
        np.testing.assert_array_equal(tile[::factor, ::factor], np.broadcast_to(image, (8, 6, 3)))
        np.testing.assert_array_equal(
            tile, tile[::factor, ::factor].repeat(factor, 0).repeat(factor, 1)
        )
    assert (grid[height] == 255).all()
    assert (grid[height + 1 :, 2 * (width + 1) :] == 255).all(), "nothing to show there"


def test_png_is_read_back_to_the_bit():
    image = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(figures.png(image)))), image)


def test_classes_have_the_colors_of_pascal_voc():
    colors = figures.class_colors(np.array([[0, 1, 2], [3, 15, 255]], np.uint8))
    assert colors.tolist() == [
        [[0, 0, 0], [128, 0, 0], [0, 128, 0]],
        [[128, 128, 0], [192, 128, 128], [224, 224, 192]],
    ]
