"""Decoded examples that are kept on the disk."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.cache.example_cache import open_rows
from trainer.datasets.image_folder import image_folder

COUNT = 12


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(COUNT):
            path = tmp_path / "images" / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 256, (9, 7, 3)).astype(np.uint8)
            path.write_bytes(tf.io.encode_png(pixels).numpy())
    return tmp_path / "images"


def cached(folder, **options):
    return image_folder(path=str(folder), image_size=[6, 6], cache="disk", **options)


def fetch(split, *indices):
    return {n: t.numpy() for n, t in split.fetch(tf.constant(indices, tf.int64)).items()}


@pytest.mark.slow
def test_kept_examples_are_not_read_again(folder):
    data, other = cached(folder), cached(folder)
    first = fetch(data.train, 3, 0, 3)
    for file in (folder / "train").rglob("*.png"):
        file.write_bytes(b"no image")
    for split in (data.train, other.train):
        np.testing.assert_equal(fetch(split, 0, 3), {n: v[[1, 0]] for n, v in first.items()})
    with pytest.raises((tf.errors.OpError, ValueError), match="it is no JPEG or PNG"):
        fetch(data.train, 0, 4)
    # Files that have changed are others.
    with pytest.raises((tf.errors.OpError, ValueError), match="it is no JPEG or PNG"):
        fetch(cached(folder).train, 0)


def test_damage_of_the_cache_is_found(folder, home):
    data = cached(folder)
    expected = fetch(data.train, *range(COUNT))
    for file in (home / ".cache/steadfast").glob("*.bin"):
        whole = file.read_bytes()
        with file.open("r+b") as opened:
            opened.seek(100)  # after the checksums
            opened.write(bytes(255 - byte for byte in whole[100:]))
    np.testing.assert_equal(fetch(data.train, *range(COUNT)), expected)
    for file in (folder / "train").rglob("*.png"):  # it is repaired, so these are not needed
        file.unlink()
    np.testing.assert_equal(fetch(data.train, *range(COUNT)), expected)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"cache \(disk\) needs 9\d+\.\d+ GiB, but .* free"):
        open_rows("a", np.dtype(np.uint8), 10**18)
