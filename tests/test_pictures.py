import numpy as np
import pytest

from trainer import pictures


def test_a_confusion_matrix_is_shaded_by_the_share_of_its_row():
    picture = pictures.confusion_matrix(np.array([[8.0, 0.0], [50.0, 50.0]]), ["cat", "polar bear"])
    assert (picture.dtype, picture.shape[2]) == (np.uint8, 3)
    cell = (picture.shape[1] - 1) % 1024
    dark = (picture == (8, 48, 107)).all(axis=2)
    assert dark.any(), "a row that is all right is as dark as can be"
    rows, columns = np.nonzero(dark)
    half = (picture == (132, 152, 181)).all(axis=2)
    assert half.sum() > dark.sum(), "two cells of one half each"
    assert np.nonzero(half)[0].min() > rows.max() - 2, "the second row is below the first"
    assert columns.max() < cell


def test_names_and_numbers_are_drawn():
    matrix = np.eye(3)
    plain = pictures.confusion_matrix(matrix, ["", "", ""])
    named = pictures.confusion_matrix(matrix, ["a", "b", "c"])
    assert named.shape[0] > plain.shape[0]
    one, other = (pictures.confusion_matrix(np.diag([1.0, number]), ["a", "b"]) for number in (1, 7))
    assert one.shape == other.shape
    assert (one != other).any()


@pytest.mark.parametrize("size", [1, 61, 1500])
def test_any_number_of_classes_can_be_drawn(size):
    picture = pictures.confusion_matrix(np.eye(size), [str(number) for number in range(size)])
    assert max(picture.shape) < 2000


@pytest.mark.parametrize("channels", [1, 3])
def test_images_keep_their_pixels_and_get_a_caption(channels):
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 6, channels), dtype=np.uint8)
    found = pictures.captioned(images, ["3 -> 8 (0.97)", ""])
    assert (found.dtype, found.shape[0], found.shape[3]) == (np.uint8, 2, 3)
    factor = 16  # to 96 pixels at least
    left = (found.shape[2] - 6 * factor) // 2
    picture = found[:, : 8 * factor, left : left + 6 * factor]
    np.testing.assert_array_equal(picture[:, ::factor, ::factor], np.broadcast_to(images, (2, 8, 6, 3)))
    caption = found[:, 8 * factor :]
    assert (caption[0] < 128).any()
    assert (caption[1] == 255).all()


def test_large_images_are_not_enlarged():
    assert pictures.captioned(np.zeros((1, 300, 400, 3), np.uint8), ["a"]).shape[2] == 400
