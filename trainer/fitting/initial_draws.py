"""Remembers which values initializers have drawn, so that a weight that has them counts as fresh.

A fresh weight is no part of what a model is: a run draws it from its own seed.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_MODULES = (
    "tensorflow.python.ops.init_ops_v2",  # tf.random_normal_initializer and others
    "tf_keras.src.initializers.initializers",
    "keras.src.initializers.random_initializers",
)
_CONSTANT = {"Constant", "Identity", "Ones", "Zeros"}

_drawn: dict[bytes, Draw] = {}
_chosen: set[int] = set()
"""Seeds that Keras 3 has chosen for initializers without one."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Values of an initializer: other ones in each process that loads it, the same in all copies.

    Attributes:
        arguments: what it is called with: the shape, and maybe the dtype.
        keywords: the same, by name.
    """

    initializer: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    @functools.cached_property
    def values(self) -> Any:
        """The values, drawn once."""
        return self.initializer(*self.arguments, **self.keywords)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "values"}


def watch() -> None:
    """Remember from now on what the random initializers draw, of all libraries in this process."""
    for module in filter(None, map(sys.modules.get, _MODULES)):
        for name, kind in list(vars(module).items()):
            call = vars(kind).get("__call__") if isinstance(kind, type) else None
            if call and name not in _CONSTANT and not hasattr(call, "__wrapped__"):
                kind.__call__ = _remembering(call)


def _remembering(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapper(self: Any, *arguments: Any, **keywords: Any) -> Any:
        values = call(self, *arguments, **keywords)
        if hasattr(values, "numpy"):  # not in a graph
            _drawn[_digest(values)] = Draw(self, arguments, keywords)
        return values

    return wrapper


def drawn(values: Any) -> Draw | None:
    """Return how values were drawn; None: they were not, or unseen."""
    return _drawn.get(_digest(values))


def repeat_draws(model: Any) -> None:
    """Have the layers of a model draw their initial values again, for those drawn unseen.

    An initializer of Keras draws the same values whenever it is called.
    """
    watch()  # of libraries that were imported later too
    with warnings.catch_warnings(action="ignore"):  # that it draws the same values
        for layer in model._flatten_layers():
            for name, initializer in list(vars(layer).items()):
                weight = name.removesuffix("_initializer")
                if weight == name or not callable(initializer):
                    continue
                if getattr(initializer, "_init_seed", 0) is None:
                    _chosen.add(initializer.seed)
                for suffix in ("", "_kernel"):
                    value: Any = getattr(layer, f"{weight}{suffix}", None)
                    if hasattr(value, "shape") and drawn(value) is None:
                        initializer(value.shape, dtype=value.dtype)


def config_of(initializer: Any) -> dict[str, Any]:
    """Return the configuration of an initializer of Keras, without a seed that Keras has chosen."""
    config: dict[str, Any] = initializer.get_config()
    # Einsum layers of Keras 3 make another initializer, of a separate seed.
    is_chosen = isinstance(seed := config.get("seed"), int) and seed in _chosen
    return {**config, "seed": None} if is_chosen else config


def _digest(values: Any) -> bytes:
    array = np.ascontiguousarray(values)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).digest()
