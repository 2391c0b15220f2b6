"""What objects of either Keras need that are made again: classes, precision, options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


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


def optimizer_options(optimizer: Any) -> dict[str, Any]:
    """Return the options of an optimizer; a schedule is itself: it may have no configuration."""
    hyper = getattr(optimizer, "_hyper", {})  # of a legacy one
    holder, name = (hyper, "learning_rate") if hyper else (vars(optimizer), "_learning_rate")
    rate = holder.get(name)
    if not callable(rate):
        return dict(optimizer.get_config())
    holder[name] = 0.0
    try:
        return {**optimizer.get_config(), "learning_rate": rate}
    finally:
        holder[name] = rate


def check_precision(model: Any, path: str) -> None:
    """Refuse a precision that the layers, which have their own, would not follow.

    Raises:
        ValueError: that of the run is another.
    """
    wanted = import_module("tensorflow").keras.mixed_precision.global_policy().compute_dtype
    layers = [x for x in model._flatten_layers() if x.weights and not hasattr(x, "layers")]
    dtypes = {layer.compute_dtype for layer in layers}
    if dtypes and wanted not in dtypes:
        raise ValueError(
            f"path ({path}): the model's layers compute in {', '.join(sorted(dtypes))}, as they "
            f"were saved, not in {wanted}; set precision to theirs, or save it with that of the "
            "run"
        )
