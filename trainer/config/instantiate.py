"""Makes the object that a configuration node names: the only caller of Hydra's instantiate."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hydra

from trainer.config.options import targets
from trainer.config.options.constraints import NODES, unknown_key
from trainer.errors import ConfigError
from trainer.protocols import Node
from trainer.text import first_line


def instantiate(
    node: Mapping[str, Any],
    key: str,
    *args: Any,
    leave_out: tuple[str, ...] = (),
    named: Mapping[str, Any] | None = None,
    **extra: Any,
) -> Any:
    """Call the `_target_` of a node with its options, and return the result.

    Options that are nodes of a task are handed over as such, for the task builds them.

    Args:
        node: `_target_` and its options; one that is a node whose `_target_` is null is None.
        leave_out: keys of the node that the engine reads itself, so not options of the target.

    Raises:
        ConfigError: an option is unknown, or the target refuses a value or a file.
    """
    options: dict[str, Any] = {
        name: None if isinstance(value, Mapping) and value.get("_target_", "") is None else value
        for name, value in node.items()
        if name not in leave_out
    }
    try:
        target = hydra.utils.get_object(options["_target_"])
        _check_options(target, key, set(options) - {"_target_"})
        passed = {**(named or {}), **_take_nodes(options, key)}
        if passed:
            options["_target_"] = functools.partial(target, **passed)
        return hydra.utils.instantiate(options, *args, _convert_="all", **extra)
    except hydra.errors.InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, ConfigError):
            raise cause from None
        if line := _problem(cause, f"{key}._target_ ({node['_target_']})"):
            raise ConfigError(line) from cause
        if isinstance(
            cause, ValueError | FileNotFoundError | NotADirectoryError | PermissionError
        ) and not _from_a_library(cause):
            raise ConfigError(f"{key}: {str(cause).strip()}") from cause
        raise cause from None


def instantiate_model(node: Mapping[str, Any], key: str, available: Mapping[str, Any]) -> Any:
    """Call a model function with its options, and with what it requests.

    Raises:
        ConfigError: an option is unknown, or the function refuses a value or a file.
    """
    signature = _signature(hydra.utils.get_object(node["_target_"]))
    by_position, by_name = targets.model_arguments(signature)
    args = [available[name] for name in by_position]
    return instantiate(node, key, *args, named={name: available[name] for name in by_name})


def import_target(node: Mapping[str, Any]) -> None:
    """Import the module of a node's target, and with it what that imports."""
    hydra.utils.get_object(node["_target_"])


def _take_nodes(options: dict[str, Any], key: str) -> dict[str, Node]:
    """Take the options that are nodes of a task out of `options`; return them by name."""
    kinds = {group: kind for kind, group in NODES.items()}
    return {
        name: kinds[group](f"{key}.{name}", options.pop(name))
        for name, group in targets.node_groups(options["_target_"]).items()
        if isinstance(options.get(name), Mapping)
    }


def _problem(cause: BaseException, target: str) -> str | None:
    """Return why a target (key and path) cannot be called; None: the error is of what it does."""
    # TensorFlow is not imported here.
    if isinstance(cause, MemoryError) or type(cause).__name__ == "ResourceExhaustedError":
        memory = first_line(cause).partition(" and type ")[0]
        return f"{target} does not fit into memory ({memory}); choose smaller options"
    if isinstance(cause, hydra.errors.InstantiationException):
        return f"{target} is refused by Hydra: {first_line(cause)}"
    innermost = Path(traceback.extract_tb(cause.__traceback__)[-1].filename)
    is_of_call = innermost.is_relative_to(Path(hydra.__file__).parent)
    if isinstance(cause, TypeError) and is_of_call:  # it is not written in Python
        return f"{target} cannot be called as this key is: {first_line(cause)}"
    return None


def _from_a_library(error: BaseException) -> bool:
    """Return whether TensorFlow or NumPy raised the error: a mistake in code, not in a value."""
    innermost = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    folders = (
        Path(folder)
        for name in ("tensorflow", "tf_keras", "keras", "numpy")
        for folder in getattr(sys.modules.get(name), "__path__", ())
    )
    return any(map(innermost.is_relative_to, folders)) or "\n" in str(error).strip()


def _check_options(target: Callable[..., Any], key: str, names: set[str]) -> None:
    """Raise a ConfigError for unknown options of targets whose source the parent could not read."""
    signature = _signature(target)
    if signature is None or targets.takes_any(signature):
        return
    options = targets.options_of(signature)
    if unknown := sorted(names - set(options)):
        raise ConfigError(*(unknown_key(f"{key}.{name}", options, {}) for name in unknown))


def _signature(target: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of an imported target; None: it is C code.

    `*args` of a class do not count: they are passed to the class that it extends.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    parameters = [
        item
        for item in signature.parameters.values()
        if not (isinstance(target, type) and item.kind is item.VAR_POSITIONAL)
    ]
    return signature.replace(parameters=parameters)
