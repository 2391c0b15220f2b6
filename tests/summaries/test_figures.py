"""Figures: the confusion matrix, and images with captions."""

import numpy as np
import pytest

from trainer.summaries import figures


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
