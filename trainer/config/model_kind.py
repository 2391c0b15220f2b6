"""Whether a model may be of Keras 3, as far as its source tells. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainer.config.options import signatures
from trainer.config.schema import Experiment

_NAMES_KERAS = re.compile(r"(?<![\w.])keras(_hub)?\b")
"""Not that of TensorFlow, `tf.keras` or `tf_keras`."""


def may_be_keras3(experiment: Experiment) -> bool:
    """Return whether a model may be of Keras 3; for sure that is known once it is built.

    Functions of this project are known by their source, all others may return any model.
    """
    nodes = list((experiment.task or {}).values())  # models of a task are built from its nodes
    return any(map(_may_use_keras3, _targets([experiment.model, *nodes])))


def _may_use_keras3(target: str) -> bool:
    if not target.startswith("trainer."):
        return not target.startswith(("tensorflow.", "tf_keras."))
    file = signatures.source(target.rpartition(".")[0])
    return file is not None and bool(_NAMES_KERAS.search(file.read_text(encoding="utf-8")))


def _targets(node: Any) -> Iterator[str]:
    """Yield the targets of a node and of the nodes in it."""
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str):
            yield target
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _targets(inner)
