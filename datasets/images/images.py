"""What all image datasets share: the splits, and the preprocessing from pixels to model input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Free, Ge, Gt, Le, OneOf
from trainer.datasets.cache.example_cache import with_cache
from trainer.datasets.images.framing import Framing
from trainer.datasets.images.image_files import CorruptExamples, FileSplit, decode
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.protocols import SplitDefaults, with_defaults

IGNORED = 255
"""Value of a mask's pixels that count neither in the loss nor in a metric."""


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The options about images of every dataset that takes them; their YAML files explain them."""

    crop: Annotated[float | None, Gt(0), Le(1)] = None
    antialias: bool = False
    max_corrupt_records: Annotated[int, Ge(0), Free()] = 0
    cache: Annotated[str, OneOf("none", "disk"), Free()] = "none"
    augment: Augmentation | None = None
    normalize: Normalization | None = None

    @property
    def framing(self) -> Framing:
        """How image files are framed in evaluation."""
        return Framing(self.crop, antialias=self.antialias)

    @cached_property
    def _corrupt(self) -> CorruptExamples:
        return CorruptExamples(self.max_corrupt_records)

    def reading(self, split: str) -> dict[str, Any]:
        """Return how a `RecordSplit` of this name frames images, and counts damaged ones."""
        min_area = self.augment.min_area if self.augment and split == "train" else 0.0
        return {"framing": replace(self.framing, min_area=min_area), "corrupt": self._corrupt}

    def dataset(self, splits: Mapping[str, Any], **others: Any) -> ImageDataset:
        """Return a dataset of splits by name, with a cache if one is configured."""
        dataset = ImageDataset(
            **splits,
            framing=self.framing,
            augment=self.augment,
            normalize=self.normalize,
            **others,
        )
        return with_cache(dataset, self.cache)

    def numbers(self, splits: Mapping[str, Any], **others: Any) -> ArrayDataset:
        """Return a dataset of splits without images; raise a ValueError if an option is for them.

        It has a cache if one is configured.
        """
        changes = self.augment is not None and (self.augment.num_draws or self.augment.min_area)
        options = {"augment": changes, "crop": self.crop, "antialias": self.antialias}
        for name in filter(options.get, options):
            raise ValueError(f"{name} is for images, and the features are not; leave it out")
        dataset = ArrayDataset(**splits, normalize=self.normalize, **others)
        return with_cache(dataset, self.cache)


@dataclass(frozen=True, kw_only=True)
class ImageDataset:
    """Images and labels, or masks, with their preprocessing.

    It resizes, augments and normalizes. Every random change of place moves a mask with its image.

    Attributes:
        image_shape: (height, width, channels) of what `fetch` of the splits returns.
        has_masks: whether a batch has `mask`, [B, H, W] uint8: the class of each pixel, or IGNORED.
        max_value: the stored value that stands for white; pixels are divided by it.
        image_size: resize to (height, width), or None. All that follows counts resized pixels.
        framing: which part of an image file becomes an example.

    Raises:
        ValueError: an option does not suit images of this shape.
    """

    train: Any
    test: Any
    image_shape: tuple[int, int, int]
    num_classes: int
    validation: Any = None
    class_names: Sequence[str] | None = None
    label_kind: str = "class"
    has_masks: bool = False
    max_value: float = 255.0
    image_size: Sequence[int] | None = None
    framing: Framing = field(default_factory=Framing)
    augment: Augmentation | None = None
    normalize: Normalization | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None:
            check_size(self.image_size)
        if self.augment is not None:
            self.augment.check(self.input_shape)
            if self.has_masks:
                self.augment.check_masks()
            if self.group_size > 1 and self.label_kind != "class":
                raise ValueError(
                    "augment.mixup and augment.cutmix mix classes, and the labels are not; set "
                    "both to 0"
                )
        if self.normalize is not None:
            self.normalize.check(self.image_shape[2])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(height, width, channels) as the model sees them."""
        return (*(self.image_size or self.image_shape[:2]), self.image_shape[2])

    @property
    def num_draws(self) -> int:
        """How many random numbers `transform` takes for each example."""
        return 0 if self.augment is None else self.augment.num_draws

    @property
    def group_size(self) -> int:
        """How many neighbors in a batch `transform` joins in training; 1: none."""
        return 1 if self.augment is None else self.augment.group_size

    def decode(self, content: tf.Tensor) -> tf.Tensor:
        """Decode the bytes of an image file, scalar string, to one example, [*image_shape]."""
        return decode(content, self.image_shape, self.framing, max_value=self.max_value)

    def files(self, paths: Sequence[Path]) -> FileSplit:
        """Return an unlabeled split of image files; unreadable files have weight 0."""
        return FileSplit(
            paths,
            None,
            self.image_shape,
            framing=replace(self.framing, min_area=0.0),
            corrupt=CorruptExamples(len(paths)),
            max_value=self.max_value,
        )

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        """Turn a fetched batch into what the model sees.

        Args:
            batch: with `features` [B, *image_shape], uint8 or float32 in [0, max_value]. All other
                entries are returned unchanged.
            draws: [B, num_draws] float32 in [0, 1); None in evaluation, without augmentation.

        Returns:
            The batch with `features` [B, *input_shape] float32, in [0, 1] unless normalized. With
            mixup or CutMix `label` is [B, num_classes] float32, the fraction of each class. Pixels
            that are shifted in from outside have the class IGNORED in `mask`.
        """
        images = tf.cast(batch["features"], tf.float32) / self.max_value
        if self.input_shape != self.image_shape:
            images = resize(images, self.input_shape[:2])
        if draws is None or self.augment is None:
            return {**batch, "features": self._normalized(images)}
        is_cut = with_defaults(self.train, SplitDefaults).augments
        fill = (0.0,) if self.normalize is None else self.normalize.mean
        images = self.augment.apply(images, draws, is_cut=is_cut, fill=fill)
        batch = {**batch, "features": self._normalized(images)}
        if "mask" in batch:
            batch["mask"] = self.augment.apply_to_masks(batch["mask"], draws, IGNORED)
        return self.augment.mix(batch, draws, self.num_classes)

    def _normalized(self, images: tf.Tensor) -> tf.Tensor:
        return images if self.normalize is None else self.normalize.apply(images)


def resize(images: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Resize images [B, H, W, C] to `size` (height, width), bilinear, as float32."""
    # Not antialiased: that kernel exists for CPUs only, and not for XLA.
    return tf.image.resize(images, size)


def decoded_shape(size: Sequence[int], channels: int) -> tuple[int, int, int]:
    """Return the shape of decoded images of an `image_size`; raise a ValueError without one.

    They are gray or have colors.
    """
    check_size(size)
    if channels not in (1, 3):
        raise ValueError(f"channels ({channels}) must be 1 or 3")
    return size[0], size[1], channels


def check_size(size: Sequence[int]) -> None:
    """Raise a ValueError if an `image_size` is not two positive numbers."""
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"image_size ({list(size)}) must be [height, width], both at least 1")
