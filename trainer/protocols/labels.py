"""What the labels of a dataset are, and what a task may know of them before training.

A dataset, a task and a metric may have an attribute `label_kind`; without it a dataset has classes,
and a task or a metric is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from trainer.protocols.data import DatasetDefaults
from trainer.protocols.defaults import with_defaults

LabelKind: TypeAlias = Literal["class", "number", "multilabel"]
"""What an example's `label` is, and what a task's `predict_step` returns.

class: the number of its class, [B] integers; `probabilities`, [B, num_classes] float32.
number: targets to predict, [B] or [B, targets] float32; `prediction`, [B, targets] float32.
multilabel: whether it has each label, [B, labels] integers, 0 or 1; `probabilities`, [B, labels]
float32, and `predicted`, [B, labels] integers.
"""

MetricKind: TypeAlias = LabelKind | Literal["sample"]
"""What a metric compares with predictions: labels; or (sample) none, of generated examples."""

PREDICTIONS: Mapping[MetricKind, str] = {
    "class": "probabilities",
    "number": "prediction",
    "multilabel": "probabilities",
    "sample": "sample",
}
"""Which of a task's predictions its metrics are given."""

IN_WORDS: Mapping[MetricKind | None, str] = {
    "class": "one class an example",
    "number": "numbers",
    "multilabel": "several labels an example",
    "sample": "generated examples",
    None: "of another form, or missing",
}


def label_kind_of(owner: Any) -> LabelKind | None:
    """Return the kind of labels of a dataset or a metric: its `label_kind`, or `class`.

    None: they may be anything.
    """
    return with_defaults(owner, DatasetDefaults).label_kind


class KnownLabels(Protocol):
    """What is known of the labels of the training split.

    Attributes:
        label_kind: what they are.
    """

    label_kind: LabelKind | None

    @property
    def class_counts(self) -> Sequence[int]:
        """Number of examples of each class.

        Raises ConfigError where the dataset does not know them without reading all examples.
        """

    @property
    def target_scale(self) -> Sequence[tuple[float, float]] | None:
        """Mean and standard deviation of each target; None: the dataset is not fitted."""
