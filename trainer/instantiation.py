"""From a configuration node to the object that it names: the only caller of Hydra's instantiate."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hydra

from trainer.errors import ConfigError


def instantiate(node: Mapping[str, Any], key: str, *args: Any, leave_out: tuple[str, ...] = (), **extra: Any) -> Any:
    """Calls a node's `_target_`.

    Args:
        node: `_target_` and its options.
        key: the node's key in the configuration, for messages.
        args: what the engine hands over before the options.
        leave_out: keys of the node that are the engine's own and no options of the target.
        extra: what the engine hands over by name.

    Raises:
        ConfigError: the target refuses its arguments, or says that a value or a file is wrong.
    """
    options = {name: value for name, value in node.items() if name not in leave_out}
    try:
        target = hydra.utils.get_object(options["_target_"])
        _check_options(target, key, set(options) - {"_target_"})
        return hydra.utils.instantiate(options, *args, _convert_="all", **extra)
    except hydra.errors.InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, ConfigError):
            raise cause from None
        if isinstance(cause, ValueError | FileNotFoundError | NotADirectoryError | PermissionError) and not _from_a_library(cause):
            raise ConfigError(f"{key}: {str(cause).strip()}") from cause
        raise cause from None


def _from_a_library(error: BaseException) -> bool:
    """Says whether an error comes out of TensorFlow's or NumPy's depths: then it is a mistake in code, not in a value."""
    innermost = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return not {"tensorflow", "tf_keras", "keras", "numpy"}.isdisjoint(innermost.parts) or "\n" in str(error).strip()


def _check_options(target: Callable[..., Any], key: str, names: set[str]) -> None:
    """Refuses options that the target does not take, for targets whose source the parent could not read."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    if unknown := sorted(names - {parameter.name for parameter in parameters}):
        raise ConfigError(f"unknown key '{key}.{unknown[0]}': {getattr(target, '__name__', target)} has no such option")
