"""Labeled texts as fixed lengths of tokens, for classification.

Texts are read and encoded once; the tokens are kept in a file and, in a run, in memory, so that a
batch is only gathered. A text is cut or padded to one length: a length for each batch would make
the shape of a step depend on its examples.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from trainer.annotations import Exists, Free, Ge, Gt, Lt
from trainer.datasets.cache.kept_files import kept_arrays, key_of
from trainer.datasets.splits.arrays import on_host
from trainer.datasets.splits.paths import Splits, divided, find_splits, hash_texts
from trainer.datasets.texts import text_files
from trainer.datasets.texts.tokens import BYTES, Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

_VERSION = 3  # of the arrays that are kept; part of their name
PADDING = 0  # the tokenizer's own numbers follow it


class TextSplit:
    """A split of texts, as tokens in memory: 1 or 2 bytes each, 4 of a large vocabulary."""

    in_memory = True

    def __init__(
        self, tokens: np.ndarray, offsets: np.ndarray, labels: np.ndarray | None, length: int
    ) -> None:
        """Take the tokens of all texts, [T] unsigned, and the length that a text is padded to.

        Text i has those from offsets[i] to offsets[i + 1], [N + 1] int64. Labels are the numbers of
        classes, [N] int64.
        """
        self.num_examples = len(offsets) - 1
        self.labels = labels
        self._tokens = tokens
        self._offsets = offsets
        self._length = length

    @property
    def hashes(self) -> np.ndarray:
        """A number in [0, 1) for each text, [N], by its tokens: equal texts stay together."""
        numbers = self._tokens.astype(np.int64)
        pairs = itertools.pairwise(self._offsets.tolist())
        return hash_texts(numbers[start:end].tobytes().hex() for start, end in pairs)

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the texts `indices`, [B] int64.

        Returns:
            `features` [B, length] int32, token numbers from 1 and then PADDING; `label` [B] int64,
            if there are labels.
        """
        numbers, offsets, *labels = self._tensors
        with tf.device("CPU:0"):
            start = tf.gather(offsets, indices)[:, None]
            end = tf.gather(offsets, indices + 1)[:, None]
            places = start + tf.range(self._length, dtype=tf.int64)
            tokens = tf.gather(numbers, tf.minimum(places, len(self._tokens) - 1))
            features = tf.where(places < end, tf.cast(tokens, tf.int32) + 1, PADDING)
            batch = {"features": features}
            for classes in labels:
                batch["label"] = tf.gather(classes, indices)
            return batch

    @cached_property
    def _tensors(self) -> list[tf.Tensor]:
        return on_host(self._tokens, self._offsets, self.labels)


@dataclass(frozen=True, kw_only=True)
class TextDataset:
    """Texts and labels.

    Attributes:
        vocabulary_size: how many different numbers features have, the padding included.
    """

    train: TextSplit
    test: TextSplit
    input_shape: tuple[int, ...]
    num_classes: int
    class_names: Sequence[str]
    vocabulary_size: int
    tokenizer_name: str
    validation: TextSplit | None = None
    num_draws: int = 0

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        return batch

    @property
    def features_rule(self) -> str:
        """How features are made of a text, for the card of an exported model."""
        return (
            f"the tokens of a text by the tokenizer {self.tokenizer_name}, each plus 1; cut after "
            f"{self.input_shape[0]}, and filled up with {PADDING}"
        )

    @property
    def from_texts(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """What makes features of texts, [B] strings; None: TensorFlow alone cannot."""
        return self._from_bytes if self.tokenizer_name == BYTES else None

    def _from_bytes(self, texts: tf.Tensor) -> tf.Tensor:
        (length,) = self.input_shape
        numbers = tf.io.decode_raw(texts, tf.uint8, fixed_length=length)
        is_token = tf.range(length) < tf.strings.length(texts)[:, None]
        return tf.where(is_token, tf.cast(numbers, tf.int32) + 1, PADDING)


def text(  # noqa: PLR0913 - every option is a key of the configuration
    *,
    path: Annotated[str | None, Exists(), Free(names_run=True)] = None,
    test_path: Annotated[str | None, Exists(), Free(names_run=True)] = None,
    text: str = "text",
    label: str = "label",
    tokenizer: str = "bytes",
    length: Annotated[int, Ge(1)] = 256,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    cache_dir: Annotated[str | None, Free()] = None,
) -> TextDataset:
    """Labeled texts of files `.csv`, `.jsonl` or `.parquet`, or of folders `<class>/<name>.txt`.

    A folder may have files for each split, as in `image_folder`, or with `train` and `test` in
    their names. Otherwise a row belongs to the test split if a hash of its file's name and its
    number falls under `test_fraction`.

    Raises:
        FileNotFoundError: a file or folder is missing.
        ValueError: a file is damaged, a row lacks a value, or a split is empty.
    """
    splits = find_splits(path, test_path, text_files.find)
    encoder = load_tokenizer(tokenizer)
    found = splits.present
    roots = [str(root) for root, _ in found.values()]
    rule = [_VERSION, encoder.fingerprint, *found, *roots, text, label, length, test_fraction]
    key = key_of(rule, [file for _, files in found.values() for file in files])
    rows = partial(_rows, splits, (text, label), test_fraction)
    arrays = kept_arrays(f"text-{key}", lambda: _encode(rows(), encoder, length), cache_dir)
    classes = tuple(arrays["classes"].tolist())
    _log_padding(arrays["train offsets"], length)
    return TextDataset(
        **{
            name: TextSplit(
                arrays[f"{name} tokens"],
                arrays[f"{name} offsets"],
                arrays.get(f"{name} labels"),
                length,
            )
            for name in {"test", *found}
        },
        input_shape=(length,),
        num_classes=len(classes),
        class_names=classes,
        vocabulary_size=encoder.size + 1,
        tokenizer_name=tokenizer,
    )


def _log_padding(offsets: np.ndarray, length: int) -> None:
    """Log how long texts are, and what of a batch is padding."""
    lengths = np.diff(offsets)
    half, most = np.percentile(lengths, (50, 95), method="higher")
    padding = 1 - lengths.mean() / length
    logger.info(
        "texts to train on: half have at most %d tokens, 95 %% at most %d; "
        "with dataset.length=%d, %.0f%% of a batch is padding",
        *(half, most, length, 100 * padding),
    )


def _rows(
    splits: Splits, columns: tuple[str, str], test_fraction: float
) -> dict[str, list[text_files.Row]]:
    text, label = columns
    rows = {}
    for name, split in splits.present.items():
        has_labels = name == "train" or text_files.have_labels(*split, text, label)
        rows[name] = list(text_files.read(*split, text, label if has_labels else None))
        if not rows[name]:
            raise ValueError(f"there is no text in the {name} split")
    what = f"texts of {splits.train.root}"
    return divided(rows, lambda rows: hash_texts(row.name for row in rows), test_fraction, what)


def _encode(
    splits: dict[str, list[text_files.Row]], encoder: Tokenizer, length: int
) -> dict[str, np.ndarray]:
    """Return the names of the classes, and what a `TextSplit` takes, by split."""
    labels = {row.label for rows in splits.values() for row in rows} - {None}
    if len({type(label) for label in labels}) > 1:
        raise ValueError("some labels are texts, others integers; use one kind")
    classes = sorted(labels)
    if unknown := sorted(labels.difference(row.label for row in splits["train"])):
        raise ValueError(f"there are no texts with the labels {unknown} to train on; add some")
    numbers = {label: number for number, label in enumerate(classes)}

    arrays = {"classes": np.array(list(map(str, classes)), str)}
    for name, rows in splits.items():
        encoded = [numbers[:length] for numbers in encoder.tokens(row.text for row in rows)]
        # One token at least, so that there is something to gather from.
        arrays[f"{name} tokens"] = np.concatenate([*encoded, np.zeros(1, encoder.dtype)])
        arrays[f"{name} offsets"] = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        if not any(row.label is None for row in rows):
            arrays[f"{name} labels"] = np.array([numbers[row.label] for row in rows], np.int64)
    return arrays
