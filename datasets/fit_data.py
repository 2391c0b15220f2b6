"""What `fit` of a script or notebook was given: arrays, or a `tf.data.Dataset`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from trainer.annotations import Exists, Ge, Structural
from trainer.datasets.arrays import arrays
from trainer.datasets.splits.nested import NestDataset
from trainer.datasets.stream import stream


def fit_data(
    *,
    data: Callable[[], Any],
    held_out: Callable[[], Any] | None = None,
    num_classes: Annotated[int | None, Ge(1), Structural()] = None,
    label_kind: Literal["auto", "class", "number", "multilabel"] = "auto",
) -> NestDataset:
    """Examples of functions, whichever kind they return.

    Args:
        data: returns training examples, arrays or a tf.data.Dataset.
        held_out: returns the examples that are evaluated, of the same kind; null: there are none.
        num_classes: as for `dataset=arrays`.
        label_kind: likewise.

    Raises:
        ValueError: what a function returns cannot be trained on.
    """
    examples, evaluated = data(), held_out and held_out()
    kinds = [isinstance(value, tf.data.Dataset) for value in (examples, evaluated)]
    if held_out and kinds[0] != kinds[1]:
        raise ValueError(
            "the data and the validation must both be arrays, or both a tf.data.Dataset; of arrays "
            "tf.data.Dataset.from_tensor_slices makes one"
        )
    if kinds[0]:
        return stream(train=data, test=held_out, num_classes=num_classes, label_kind=label_kind)
    value = (_part(examples), _part(evaluated)) if held_out else examples
    return arrays(data=lambda: value, num_classes=num_classes, label_kind=label_kind)


def _part(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def kept_arrays(*, path: Annotated[str, Exists("directory")]) -> tuple[Any, ...]:
    """Return (x, y), (x, y, sample_weight) or (x,), as they are kept in a folder."""
    folder = Path(path)
    structure = json.loads((folder / "structure.json").read_text(encoding="utf-8"))
    with np.load(folder / "arrays.npz", allow_pickle=False) as archive:
        values = [archive[f"arr_{number}"] for number in range(len(archive.files))]

    def nest(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: nest(item) for key, item in value.items()}
        if isinstance(value, list):
            return [nest(item) for item in value]
        return None if value is None else values[value]

    return tuple(map(nest, structure))
