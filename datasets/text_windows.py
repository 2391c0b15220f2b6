"""Texts as windows of tokens one after the other, for language models.

All texts are one long sequence of tokens. Example i has the tokens from i * length on, and as its
label the tokens one further: so every token but the first is predicted once an epoch, and which
ones an example has follows from its number alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from trainer.annotations import Free, Ge, Gt, Lt
from trainer.datasets.cache.kept_files import kept_sequence, key_of
from trainer.datasets.splits.arrays import on_host
from trainer.datasets.splits.paths import find_splits
from trainer.datasets.texts import text_files
from trainer.datasets.texts.tokens import Tokenizer, load_tokenizer

_IN_MEMORY = 2**28  # bytes of tokens that are held in memory; of more, a batch's alone are read


class WindowSplit:
    """A split of a sequence of tokens, in memory or in a file that is mapped.

    Attributes:
        num_examples: how many windows there are; tokens after the last whole one are left out.
    """

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        """Take the tokens, [T] of an unsigned type, and the length of a window."""
        self.num_examples = (len(tokens) - 1) // length
        self.in_memory = tokens.nbytes <= _IN_MEMORY
        self._tokens = tokens
        self._length = length

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `features`, [B, length] int32, and `label`, int64: the token after each."""
        if self.in_memory:
            with tf.device("CPU:0"):
                tokens = tf.gather(self._tensor, self._places(indices))
        else:
            tokens = tf.numpy_function(self._read, [indices], self._tokens.dtype, stateful=False)
            tokens = tf.ensure_shape(tokens, [indices.shape[0], self._length + 1])
        tokens = tf.cast(tokens, tf.int32)
        return {"features": tokens[:, :-1], "label": tf.cast(tokens[:, 1:], tf.int64)}

    def _places(self, indices: Any) -> Any:
        return indices[:, None] * self._length + np.arange(self._length + 1)

    def _read(self, indices: np.ndarray) -> np.ndarray:
        return self._tokens[self._places(indices)]

    @cached_property
    def _tensor(self) -> tf.Tensor:
        return on_host(self._tokens)[0]


@dataclass(frozen=True, kw_only=True)
class WindowDataset:
    """Windows of two sequences of tokens.

    Attributes:
        num_classes: how many different tokens there are; `label` is one for each of `features`.
    """

    train: WindowSplit
    test: WindowSplit
    input_shape: tuple[int, ...]
    num_classes: int
    vocabulary_size: int
    tokenizer: Tokenizer
    validation: WindowSplit | None = None
    num_draws: int = 0

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        return batch


def text_windows(  # noqa: PLR0913 - every option is a key of the configuration
    *,
    path: Annotated[str | None, Free(names_run=True)] = None,
    test_path: Annotated[str | None, Free(names_run=True)] = None,
    text: str = "text",
    tokenizer: str = "bytes",
    separator: str = "\n",
    length: Annotated[int, Ge(1)] = 128,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    cache_dir: Annotated[str | None, Free()] = None,
) -> WindowDataset:
    """Texts of files `.txt`, `.csv`, `.jsonl` or `.parquet`, as windows of tokens.

    Raises:
        FileNotFoundError: a file or folder is missing.
        ValueError: a file is damaged, or there are too few tokens for a window.
    """
    splits = find_splits(path, test_path, text_files.find)
    encoder = load_tokenizer(tokenizer)

    def tokens(root: Path, files: list[Path]) -> np.ndarray:
        key = key_of([encoder.fingerprint, str(root), text, separator], files)

        def build() -> Iterator[np.ndarray]:
            rows = text_files.read(root, files, text, None)
            return encoder.tokens(row.text + separator for row in rows)

        return kept_sequence(f"tokens-{key}", encoder.dtype, build, cache_dir)

    found = {name: tokens(*split) for name, split in splits.present.items()}
    if not splits.is_whole:
        found = {"test": np.zeros(0, encoder.dtype), **found}
    return divided(found, test_fraction, encoder, length)


def divided(
    tokens: dict[str, np.ndarray],
    test_fraction: float,
    encoder: Tokenizer,
    length: int,
) -> WindowDataset:
    """Return a dataset of the tokens, [T], of each split; of `train` alone the end is tested on.

    Raises:
        ValueError: there are too few for a window.
    """
    if "test" not in tokens:
        border = round(len(tokens["train"]) * (1 - test_fraction))
        tokens = {"train": tokens["train"][:border], "test": tokens["train"][border:]}
    for name, part in tokens.items():
        if len(part) <= length and not (name == "test" and "validation" in tokens):
            raise ValueError(
                f"length ({length}) must be < {len(part)}, the tokens of the {name} split; "
                "choose a smaller dataset.length, or give more text"
            )
    splits = {name: WindowSplit(part, length) for name, part in tokens.items()}
    return WindowDataset(
        **splits,
        input_shape=(length,),
        num_classes=encoder.size,
        vocabulary_size=encoder.size,
        tokenizer=encoder,
    )
