"""Division of examples into a training and a test split by a hash: later examples move no other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def hash_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each of `numbers`, [N] integers, the same on every machine."""
    return _hash(numbers, 1)


def hash_rows(file_name: str, numbers: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each row of a file, [N], by its name and the row's number."""
    digest = hashlib.sha256(file_name.encode()).digest()
    return _hash(numbers, int.from_bytes(digest[:8], "little"))


def _hash(numbers: np.ndarray, start: int) -> np.ndarray:
    """Return a hash of consecutive numbers: SplitMix64 (Steele et al. 2014)."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def hash_text(text: str) -> float:
    """Return a number in [0, 1) that depends on a text alone, on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def hash_texts(texts: Iterable[str]) -> np.ndarray:
    """Return `hash_text` of each text, [N] float64."""
    return np.array([hash_text(text) for text in texts], np.float64)


def divide(
    hashes: np.ndarray, test_fraction: float, what: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the training examples and those of the test examples, ascending.

    Args:
        hashes: [N] in [0, 1).

    Raises:
        ValueError: one of the splits is empty.
    """
    tested = hashes < test_fraction
    if tested.all() or not tested.any():
        empty = "train" if tested.all() else "test"
        raise ValueError(
            f"test_fraction ({test_fraction}) leaves none of the {len(hashes)} {what} of {name} in "
            f"the {empty} split; change it, or add a separate test split"
        )
    return np.flatnonzero(~tested), np.flatnonzero(tested)
