"""Arrays in `.npy` files, memory-mapped: only what a batch needs is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from trainer.annotations import Exists, Free, Gt, Lt, Structural
from trainer.datasets.images.images import ImageDataset, ImageOptions
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.indexed import Sources, from_sources
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.records.fields import Fields
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.text import first_line


class NpyPair:
    """A source of records (features, label) over two memory-mapped `.npy` files."""

    def __init__(self, features: Path, labels: Path) -> None:
        """Open features [N, ...] of numbers and labels.

        Labels are classes, [N] integers; flags, [N, labels] integers; or targets, [N] or
        [N, targets] of a floating-point type.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: they cannot be mapped, or do not belong together.
        """
        self.features = _open(features)
        self.labels = _open(labels)
        if self.labels.ndim > 2 or self.labels.dtype.kind not in "biuf":
            raise ValueError(
                f"{labels}: labels are {list(self.labels.shape)} {self.labels.dtype}, they must be "
                "[N] integers for classes, [N, labels] of 0 and 1 for several labels, or numbers "
                "with a fraction, [N] or [N, targets]"
            )
        if len(self.features) != len(self.labels):
            raise ValueError(
                f"{features} has {len(self.features)} examples, {labels} has {len(self.labels)}; "
                "both must have as many"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int | None:
        """How many classes there are; None: the labels are no classes."""
        is_class = self.labels.ndim == 1 and self.labels.dtype.kind in "iu" and len(self.labels)
        return int(self.labels.max()) + 1 if is_class else None

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        return self.features[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, int]]:
        return list(zip(self.features[indices], self.labels[indices], strict=True))


def npy(
    *,
    path: Annotated[str | None, Exists("directory"), Free(names_run=True)] = None,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    fields: Annotated[Fields | None, Structural()] = None,
    augment: Augmentation | None = None,
    normalize: Normalization | None = None,
) -> ImageDataset | ArrayDataset:
    """Memory-mapped arrays: `features.npy` [N, ...] and `labels.npy` [N, ...] in a folder.

    Labels are classes, [N] integers; for `task=multilabel` 0 and 1, [N, labels] integers; for
    `task=regression` numbers of a floating-point type, [N] or [N, targets].

    With `test_features.npy` and `test_labels.npy` in it too, these are the test split.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or is no such array.
    """
    if path is None:
        raise ValueError("path (null) must name a folder with features.npy and labels.npy")
    root = Path(path).expanduser()
    train = NpyPair(root / "features.npy", root / "labels.npy")
    test = None
    if (root / "test_features.npy").exists() or (root / "test_labels.npy").exists():
        test = NpyPair(root / "test_features.npy", root / "test_labels.npy")
    return from_sources(
        Sources(
            train,
            test,
            test_fraction=test_fraction,
            names={"train": f"{root / 'features.npy'}", "test": f"{root / 'test_features.npy'}"},
            num_classes=train.num_classes,
        ),
        fields or Fields(),
        ImageOptions(augment=augment, normalize=normalize),
    )


def _open(path: Path) -> np.ndarray:
    if not path.is_file():
        raise FileNotFoundError(f"path ({path}): no such file")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(
            f"path ({path}) cannot be read as an .npy file of plain numbers: {first_line(error)}; "
            "was it cut short?"
        ) from error
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise ValueError(f"path ({path}) holds no array with a dimension of examples")
    return array
