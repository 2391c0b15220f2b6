"""What a model of either Keras was compiled with, and which of its functions are the user's."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status

from trainer.errors import ConfigError

LIBRARIES = ("tf_keras", "keras", "keras_hub")
STEPS = ("train_step", "test_step", "compute_loss", "compute_metrics")
"""The methods of a model that decide how it is trained and evaluated."""


@dataclass(frozen=True)
class Compiled:
    """The arguments of `model.compile`, as they were given."""

    loss: Any = None
    loss_weights: Any = None
    metrics: Any = None
    weighted_metrics: Any = None
    optimizer: Any = None


def compiled_with(model: Any) -> Compiled:
    """Return what a model was compiled with; of one that was not, nothing.

    Touches private names of both Kerases; tests/tasks/keras/test_as_fit.py fails when they move.
    """
    if not is_compiled(model):
        return Compiled()
    if type(model).__module__.startswith("keras.") or hasattr(model, "_compile_loss"):
        loss, metrics = model._compile_loss, model._compile_metrics
        user_loss = getattr(loss, "_user_loss", None)
    else:
        loss, metrics = model.compiled_loss, model.compiled_metrics
        user_loss = getattr(loss, "_user_losses", None)
    return Compiled(
        user_loss,
        getattr(loss, "_user_loss_weights", None),
        getattr(metrics, "_user_metrics", None),
        getattr(metrics, "_user_weighted_metrics", None),
        model.optimizer,
    )


def is_compiled(model: Any) -> bool:
    """Return whether a model was compiled."""
    by_keras = getattr(model, "compiled", False) or getattr(model, "_is_compiled", False)
    return by_keras or getattr(model, "optimizer", None) is not None


def own_steps(model: Any) -> dict[str, type]:
    """Return the steps that a model's class does not inherit from Keras: name -> class."""
    steps = {}
    for name in STEPS:
        base = next((base for base in type(model).__mro__ if name in vars(base)), None)
        if base and base.__module__.partition(".")[0] not in LIBRARIES:
            steps[name] = base
    return steps


def undecorated(model: Any, step: str) -> Any:
    """Return a step of a model without a `tf.function` around it: updates cannot leave that."""
    bound = getattr(model, step)
    inner = getattr(getattr(type(model), step), "python_function", None)
    return bound if inner is None else types.MethodType(inner, model)


def has_call(model: Any) -> bool:
    """Return whether a model can be called: a subclass without `call` has its steps alone."""
    return type(model).call.__qualname__ != "Model.call"


def library_of(model: Any) -> Any:
    """Return the Keras that a model is of."""
    if isinstance(model, tf.keras.layers.Layer):
        return tf.keras
    import keras

    return keras


_LIBRARIES = ("tensorflow", "tf_keras", "keras")


def converted(function: Callable[..., Any], library: Any) -> Callable[..., Any]:
    """Return a function of the user's as its Keras calls it: of tf_keras, with AutoGraph."""
    module = getattr(function, "__module__", None) or ""
    if library is not tf.keras or module.partition(".")[0] in _LIBRARIES:
        return function
    return tf.__internal__.autograph.tf_convert(function, enabled())


def enabled() -> ControlStatusCtx:
    """Return a context in which tf_keras converts the functions of models and losses."""
    return ControlStatusCtx(Status.ENABLED)


_GROWS = ("append", "extend")


def check_source(functions: Iterable[Any]) -> None:
    """Check the source of the steps that a model overrides.

    Raises:
        ConfigError: one changes an attribute, or requests the value of a tensor: it would do so
            once, when it is traced, and not in every step.
    """
    for function in functions:
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue  # there is no source to read
        file = inspect.getsourcefile(function)
        for node in ast.walk(tree):
            if problem := _problem(node):
                place = f"{file}:{first + node.lineno - 1}"  # type: ignore[attr-defined]
                raise ConfigError(f"model: {place}: {problem}")


def _problem(node: ast.AST) -> str:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        if _of_self(target):
            return (
                f"{ast.unparse(target)} is assigned within a step, which happens once, when the "
                "step is traced; make it a weight (self.add_weight) and call its assign"
            )
    if isinstance(node, ast.Global | ast.Nonlocal):
        return (
            f"{', '.join(node.names)} is changed within a step, which happens once, when the step "
            "is traced; make it a weight (self.add_weight) and call its assign"
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, owner = node.func.attr, node.func.value
        if name == "numpy" and not node.args:
            return f"{ast.unparse(node)} requests a value that is unknown when the step is traced"
        if name in _GROWS and _of_self(owner):
            return (
                f"{ast.unparse(node.func)} is called once, when the step is traced, and not in "
                "every step; return the value as a metric"
            )
    return ""


def _of_self(node: ast.expr) -> bool:
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
