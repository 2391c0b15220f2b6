"""Preprocessing layers are adapted once: the run keeps what they have learned.

Neither Keras has a vocabulary or bin boundaries in a variable, so a checkpoint has them not; and
the shapes of a model depend on them, so that they must be there while it is built.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.files import read_json, write_json
from trainer.runs.directory import adapted_file


class AdaptedLayers:
    """What the calls of `adapt` have taught the layers of a run's models, in their order.

    Args:
        run_dir: the run; None, or no directory: nothing is kept.
        group: the processes that build the models together; None: this one is alone.
        adapts: whether what the run does not keep is learned, as in training.
        writes: whether this process writes the files of the run.
    """

    def __init__(
        self,
        run_dir: Path | None,
        group: ProcessGroup | None = None,
        *,
        adapts: bool,
        writes: bool = False,
    ) -> None:
        self._file = adapted_file(run_dir) if run_dir is not None and run_dir.is_dir() else None
        self._group = group
        self._adapts = adapts or self._file is None
        self._writes = writes
        self._count = 0
        self._kept: list[dict[str, Any]] = []
        if self._file is not None and self._file.exists():
            self._kept = read_json(self._file)["layers"]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have `adapt` of either Keras restore what the run keeps; only without that it learns."""
        originals = {owner: owner.adapt for owner in _owners()}
        try:
            for owner, original in originals.items():
                owner.adapt = self._once(original)
            yield
        finally:
            for owner, original in originals.items():
                owner.adapt = original

    def _once(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def adapt(layer: Any, *args: Any, **options: Any) -> None:
            text = ""
            if self._group is None or self._group.is_chief:
                text = json.dumps(self._next(layer, lambda: original(layer, *args, **options)))
            # The chief alone reads the data; all build the same.
            _restore(layer, json.loads(broadcast(text)))

        broadcast = self._group.broadcast_text_from_chief if self._group else str
        return adapt

    def _next(self, layer: Any, learn: Callable[[], None]) -> dict[str, Any]:
        """Return the state of the next layer, as the run keeps it, or as it learns it.

        Raises:
            ConfigError: the run keeps that of another layer, or none although it was trained.
        """
        kind = type(layer).__name__
        number = self._count
        self._count += 1
        if number < len(self._kept):
            kept: dict[str, Any] = self._kept[number]
            if kept["layer"] != kind:
                raise ConfigError(
                    f"{self._file} keeps what a {kept['layer']} has learned, and the model adapts "
                    f"a {kind} there; restore the code of the model, or train again"
                )
            return kept
        if not self._adapts:
            raise ConfigError(
                f"{self._file} lacks what {kind} {layer.name} learned when the run was trained; "
                "restore it from a copy, or train again"
            )
        learn()
        self._kept.append({"layer": kind, **_state(layer)})
        if self._file is not None and self._writes:
            write_json(self._file, {"layers": self._kept})
        return self._kept[-1]


def _owners() -> list[Any]:
    """Return the classes whose `adapt` all preprocessing layers call, of the Kerases in use."""
    owners: list[Any] = [tf.keras.layers.experimental.preprocessing.PreprocessingLayer]
    if keras := sys.modules.get("keras"):
        layers = keras.layers
        lookup = next(base for base in layers.StringLookup.__mro__[1:] if "adapt" in vars(base))
        owners += [layers.Normalization, layers.Discretization, layers.TextVectorization, lookup]
    return owners


def _state(layer: Any) -> dict[str, Any]:
    """Return what a layer has learned, as plain values.

    Raises:
        ConfigError: it is no layer of Keras', so that nobody knows what it learns.
    """
    if hasattr(layer, "get_vocabulary"):
        words = np.asarray(layer.get_vocabulary()).tolist()
        lookup = getattr(layer, "_lookup_layer", layer)
        is_weighted = lookup.output_mode == "tf_idf"
        weights = np.asarray(lookup.idf_weights)[: len(words)].tolist() if is_weighted else None
        return {"vocabulary": words, "idf_weights": weights}
    if hasattr(layer, "adapt_mean"):
        names = ("adapt_mean", "adapt_variance", "count")
        values = {name: np.asarray(getattr(layer, name)).tolist() for name in names}
        return {"shape": [int(side) for side in layer._broadcast_shape], "values": values}
    if hasattr(layer, "bin_boundaries"):
        summary = np.asarray(layer.summary).tolist()
        return {"bin_boundaries": np.asarray(layer.bin_boundaries).tolist(), "summary": summary}
    raise ConfigError(
        f"model: {type(layer).__name__} {layer.name} is adapted, and what it learns cannot be kept "
        "in the run; compute it in the dataset, or adapt a layer of Keras"
    )


def _restore(layer: Any, state: dict[str, Any]) -> None:
    """Give a layer what it, or another of its kind, has learned."""
    if "vocabulary" in state:
        weights = state["idf_weights"]
        layer.set_vocabulary(state["vocabulary"], *([] if weights is None else [weights]))
        return
    if not layer.built:
        layer.build(state.get("shape", [None]))
    if "shape" in state:
        for name, value in state["values"].items():
            getattr(layer, name).assign(value)
        layer.finalize_state()
        return
    layer.bin_boundaries = state["bin_boundaries"]
    if isinstance(layer.summary, tf.Variable):
        layer.summary.assign(state["summary"])
    else:
        layer.summary = np.array(state["summary"], np.float32)
