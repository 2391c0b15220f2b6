"""Preprocessing layers are adapted once: the run keeps what they have learned.

Neither Keras has a vocabulary or bin boundaries in a variable, so a checkpoint has them not; and
the shapes of a model depend on them, so that they must be there while it is built.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
        run_dir: the run; if it is no directory, nothing is kept.
        group: the processes that build the models together; None: this one is alone.
    """

    def __init__(
        self,
        run_dir: Path,
        group: ProcessGroup | None = None,
        *,
        adapts: bool,
        writes: bool = False,
    ) -> None:
        self._file = adapted_file(run_dir) if run_dir.is_dir() else None
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
        broadcast = self._group.broadcast_text_from_chief if self._group else str

        @functools.wraps(original)
        def adapt(layer: Any, *args: Any, **options: Any) -> None:
            text = ""
            if self._group is None or self._group.is_chief:
                text = json.dumps(self._next(layer, lambda twin: original(twin, *args, **options)))
            # The chief alone reads the data; all build the same.
            _restore(layer, json.loads(broadcast(text)))

        return adapt

    def _next(self, layer: Any, learn: Callable[[Any], None]) -> dict[str, Any]:
        """Return the state of the next layer, as the run keeps it, or as it learns it."""
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
        # Strategies are thread-local: within one, all processes create variables together.
        with ThreadPoolExecutor(1) as outside:
            learned = outside.submit(_learned, layer, learn).result()
        self._kept.append({"layer": kind, **learned})
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


def _learned(layer: Any, learn: Callable[[Any], None]) -> dict[str, Any]:
    """Return what a layer learns, as plain values; a twin learns it, in float32."""
    # A vocabulary's size is that of the empty one.
    options = {name: x for name, x in layer.get_config().items() if name != "vocabulary_size"}
    is_normalization = hasattr(layer, "input_mean")
    twin = type(layer)(**(options | {"dtype": "float32"} if is_normalization else options))
    learn(twin)
    if is_normalization:
        names = {"mean": twin.adapt_mean, "variance": twin.adapt_variance}
        # Keras builds the layer for the shape of the data; its batch may be of any size.
        shape = [None, *tf.TensorShape(twin._build_input_shape).as_list()[1:]]
        return {"shape": shape, **{name: x.numpy().tolist() for name, x in names.items()}}
    if hasattr(twin, "get_vocabulary"):
        words = np.asarray(twin.get_vocabulary()).tolist()
        lookup = getattr(twin, "_lookup_layer", twin)
        if lookup.output_mode != "tf_idf":
            return {"vocabulary": words}
        return {"vocabulary": words, "idf_weights": lookup.idf_weights.numpy().tolist()}
    if hasattr(twin, "bin_boundaries"):
        return {"bin_boundaries": np.asarray(twin.bin_boundaries).tolist()}
    raise ConfigError(
        f"model: {type(layer).__name__} {layer.name} is adapted, and what it learns cannot be kept "
        "in the run; compute it in the dataset, or adapt a layer of Keras"
    )


def _restore(layer: Any, state: dict[str, Any]) -> None:
    """Give a layer what it has learned, as if it had been made with that: it needs no variable."""
    if "vocabulary" in state:
        weights = state.get("idf_weights", [])[: len(state["vocabulary"])]
        layer.set_vocabulary(state["vocabulary"], *([weights] if weights else []))
    elif layer.built:
        raise ConfigError(
            f"model: {type(layer).__name__} {layer.name} is adapted after it was called; adapt it "
            "before that, so that the model is built with what it has learned"
        )
    elif "mean" in state:
        layer.input_mean, layer.input_variance = state["mean"], state["variance"]
        layer.build(tuple(state["shape"]))
    else:
        layer.bin_boundaries = state["bin_boundaries"]
        if isinstance(layer, tf.keras.layers.Layer):
            layer.input_bin_boundaries, layer.num_bins = layer.bin_boundaries, None
