"""How objects of either Keras are made again: weights by their initializers, classes by Keras."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SUFFIX = "_kernel"
"""`recurrent_kernel` has the initializer `recurrent_initializer`."""


def first_value(model: Any) -> Callable[[Any], Any | None]:
    """Return a function from a weight of a model to what its initializer gives it.

    An initializer draws the same values whenever it is called: so a weight that has these values is
    as it was when the model was made. None where the layer does not keep the initializer under
    the name of the weight.
    """
    # Inner layers come after those that contain them, and know their own weights.
    owners = {id(weight): layer for layer in model._flatten_layers() for weight in layer.weights}

    def value(weight: Any) -> Any | None:
        layer = owners[id(weight)]
        name = weight.name.rpartition("/")[2].removesuffix(":0")
        initializer = getattr(layer, f"{name}_initializer", None) or getattr(
            layer, f"{name.removesuffix(_SUFFIX)}_initializer", None
        )
        if initializer is None:
            return None
        with warnings.catch_warnings(action="ignore"):  # that it draws the same values again
            return initializer(weight.shape, dtype=weight.dtype)

    return value


def with_first_values(model: Any, numbers: Iterable[int]) -> Any:
    """Return a model in which weights of these numbers are as their initializers make them."""
    value = first_value(model)
    for weight in (model.weights[number] for number in numbers):
        weight.assign(value(weight))
    return model


@dataclass(frozen=True)
class _Constructible:
    """Stands for a class whose constructor does not take what every layer is configured with."""

    kind: Any

    def from_config(self, config: Mapping[str, Any]) -> Any:
        names = inspect.signature(self.kind).parameters
        instance = self.kind.from_config({k: v for k, v in config.items() if k in names})
        if config.get("trainable") is False:
            instance.trainable = False
        return instance


def constructible(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return custom objects of which Keras makes also those without `**kwargs` in `__init__`."""
    return {
        name: _Constructible(item) if _is_narrow(item) else item for name, item in objects.items()
    }


def _is_narrow(item: Any) -> bool:
    if not isinstance(item, type) or not hasattr(item, "get_config"):
        return False
    return all(x.kind is not x.VAR_KEYWORD for x in inspect.signature(item).parameters.values())
