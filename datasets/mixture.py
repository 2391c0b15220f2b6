"""Several datasets in one, each with its fraction of the training.

Every source keeps its own preprocessing and augmentation. They run where examples are fetched,
because the examples of a batch come from several sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.splits.paths import hash_numbers
from trainer.protocols import DatasetDefaults, Split, SplitDefaults, with_defaults

_LONGEST_PERIOD = 2**20
_CHOOSE = "write +dataset@dataset.sources.<name>=<choice>"


@dataclass(frozen=True)
class Part:
    """A source's part of a split; `share`: its positions in each period of training."""

    name: str
    size: int
    share: int


class MixtureSplit:
    """The same split of all sources, one after the other.

    Attributes:
        parts: the parts of the sources, in the order in which they are in the split. The engine
            trains on each by its share; none: on all examples, each once in an epoch.
    """

    in_memory = False
    augments = True

    def __init__(
        self, sources: Mapping[str, Any], split: str, shares: Sequence[int] | None = None
    ) -> None:
        """Take the datasets by name, which split of theirs it is, and their shares."""
        self._sources = list(sources.values())
        self._splits = [getattr(source, split) for source in self._sources]
        sizes = [part.num_examples for part in self._splits]
        self.num_examples = sum(sizes)
        self._parts = [Part(*item) for item in zip(sources, sizes, shares or sizes, strict=True)]
        self.parts = self._parts if shares is not None else []

    @property
    def hashes(self) -> np.ndarray:
        """A number in [0, 1) for each example, [N], that other sources do not change."""
        hashes = [with_defaults(split, SplitDefaults).hashes for split in self._splits]
        pairs = zip(hashes, self._parts, strict=True)
        return np.concatenate(
            [hash_numbers(np.arange(part.size)) if own is None else own for own, part in pairs]
        )

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Return examples as the model sees them; those of the first source come first.

        Returns:
            `features` [B, *input_shape], `label` [B, ...], int64, and of numbers float32, and
            `weight` [B] float32.
        """
        first = 0
        rows = []
        batches = []
        for number, part in enumerate(self._parts):
            mine = tf.where((indices >= first) & (indices < first + part.size))[:, 0]
            own = tf.gather(indices, mine) - first
            own_draws = None if draws is None else tf.gather(draws, mine)
            batches.append(self._fetch(number, own, own_draws))
            rows.append(tf.cast(mine, tf.int32))
            first += part.size
        count = indices.shape[0]
        stitched = {
            name: tf.dynamic_stitch(rows, [batch[name] for batch in batches])
            for name in ("features", "label", "weight")
        }
        return {
            name: tf.ensure_shape(value, [count, *value.shape[1:]])
            for name, value in stitched.items()
        }

    def _fetch(
        self, number: int, indices: tf.Tensor, draws: tf.Tensor | None
    ) -> dict[str, tf.Tensor]:
        """Return examples of one source; there may be none in the batch."""
        source = self._sources[number]
        split = self._splits[number]
        count = tf.shape(indices)[0]
        # Not every split can fetch nothing: its first example is fetched, and cut off again.
        missing = tf.maximum(1 - count, 0)
        indices = tf.pad(indices, [[0, missing]])
        if draws is not None:
            draws = tf.pad(draws[:, : source.num_draws], [[0, missing], [0, 0]])
        takes_draws = draws is not None and with_defaults(split, SplitDefaults).augments
        batch = split.fetch(indices, *([draws] if takes_draws else []))
        # All of a source, in evaluation too: its own weights, and none of another name.
        batch = {**batch, **source.transform(batch, draws)}
        label = batch["label"]
        label = tf.cast(label, tf.float32 if label.dtype.is_floating else tf.int64)
        weight = tf.cast(batch.get("weight", tf.ones_like(indices)), tf.float32)
        features = tf.ensure_shape(batch["features"], [None, *source.input_shape])
        return {
            name: value[:count]
            for name, value in (("features", features), ("label", label), ("weight", weight))
        }


@dataclass(frozen=True, kw_only=True)
class MixtureDataset:
    """Several datasets in one; `num_draws` is of the source that takes the most."""

    train: MixtureSplit
    test: MixtureSplit
    input_shape: tuple[int, ...]
    num_classes: int
    num_draws: int
    class_names: Sequence[str] | None = field(default=None)
    vocabulary_size: int | None = None
    label_kind: str = "class"

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        return batch  # `fetch` has preprocessed it


def mixture(
    *,
    sources: dict[str, Any] = {},  # noqa: B006 - never changed
    weights: dict[str, float] | None = None,
) -> MixtureDataset:
    """Several datasets, mixed in training and tested on one after the other.

    Raises:
        ValueError: the sources or the weights do not fit together.
    """
    if not sources:
        raise ValueError(f"sources ({{}}) must name at least one dataset; {_CHOOSE}")
    for name, source in sources.items():
        _check_source(name, source)
    names = ("input_shape", "num_classes", "class_names", "vocabulary_size", "label_kind")
    shared = {name: _shared(sources, name) for name in names}
    shares: list[int] | None = [source.train.num_examples for source in sources.values()]
    if weights is not None:
        shares = reduced(_shares(weights, list(sources)))
    elif sum(reduced(shares)) * gcd(*shares) < sum(shares):
        shares = None  # rounded, an epoch would not have each example once
    return MixtureDataset(
        train=MixtureSplit(sources, "train", shares and reduced(shares)),
        test=MixtureSplit(sources, "test"),
        num_draws=max(source.num_draws for source in sources.values()),
        **shared,
    )


def reduced(shares: Sequence[int]) -> list[int]:
    """Return shares of the same proportions, the least whole numbers.

    If they add up to more than a million, they are rounded to that, each to at least 1.
    """
    divisor = gcd(*shares)
    total = sum(shares) // divisor
    if total <= _LONGEST_PERIOD:
        return [share // divisor for share in shares]
    return [max(1, share * _LONGEST_PERIOD // (total * divisor)) for share in shares]


def _shares(weights: Mapping[str, float], names: list[str]) -> list[int]:
    if set(weights) != set(names):
        raise ValueError(
            f"weights ({', '.join(weights)}) must be one for each of the sources "
            f"({', '.join(names)})"
        )
    for name, weight in weights.items():
        if not 0 < weight < float("inf"):
            raise ValueError(f"weights.{name} ({weight}) must be > 0; or leave the source out")
    # 0.1 is meant as a tenth, and not as the nearest binary number.
    exact = [Fraction(str(weights[name])) for name in names]
    scale = lcm(*(number.denominator for number in exact))
    return [int(number * scale) for number in exact]


def _check_source(name: str, source: Any) -> None:
    if not isinstance(getattr(source, "train", None), Split):
        raise ValueError(
            f"sources.{name} must be a dataset with random access; a stream cannot be mixed"
        )
    if with_defaults(source, DatasetDefaults).feature_specs is not None:
        raise ValueError(
            f"sources.{name} is of arrays of any structure (dataset=arrays), which cannot be "
            "mixed; join them in its function"
        )
    if with_defaults(source, DatasetDefaults).group_size > 1:
        raise ValueError(
            f"sources.{name} joins examples of a batch (mixup or CutMix), which come from several "
            "sources here; add augment.mixup=0 augment.cutmix=0"
        )


def _shared(sources: Mapping[str, Any], attribute: str) -> Any:
    """Return the value of an attribute of all sources; raise a ValueError if they differ."""
    values: dict[str, Any] = {}
    for name, source in sources.items():
        is_optional = hasattr(DatasetDefaults, attribute)
        value = getattr(
            with_defaults(source, DatasetDefaults) if is_optional else source, attribute
        )
        values[name] = value if value is None or isinstance(value, int | str) else tuple(value)
    first, *others = values
    for name in others:
        if values[name] != values[first]:
            raise ValueError(
                f"sources.{name} and sources.{first} must have the same {attribute}, they have "
                f"{values[name]} and {values[first]}"
            )
    return values[first]
