"""Devices that a model requests for its variables: refused unless they are its replica's own.

Keras ignores the `tf.device` that a layer is made under. `trainer.logical_devices` is for parts of
a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from trainer.engine.graph.placement.step_devices import device_key, group_with
from trainer.errors import ConfigError

_KINDS = ("CPU", "GPU")
_HOST = ("CPU", 0)  # always allowed: lookups and decoding exist only there


@contextmanager
def no_devices_for_variables() -> Iterator[None]:
    """Refuse variables that are made under a `tf.device`; entered in `strategy.scope()`.

    Raises:
        ConfigError: a variable is made under another device than the strategy's own.
    """
    own = context.context().device_name

    def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        requested = context.context().device_name
        if requested != own:
            _check(options.get("name") or "", requested, own)
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def _check(variable: str, requested: str, own: str) -> None:
    """Raise a ConfigError if the device of a variable is neither its replica's nor the host."""
    kind, index = device_key(requested)
    if kind not in _KINDS:
        return
    allowed = (_HOST, device_key(own), *map(device_key, group_with(own) or ()))
    if any(kind == other and index in (None, number) for other, number in allowed):
        return
    name = kind if index is None else f"{kind}:{index}"
    raise ConfigError(
        f"model: variable {variable} requests the device {name}, but every replica computes the "
        "whole model on its own device; remove tf.device from the model, or divide the model with "
        "strategy.devices_per_replica and logical_device"
    )
