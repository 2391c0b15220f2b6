"""Checks what has been traced: nothing in it may be lost with a process, or differ by layout.

The graph is judged, not what a model declares: a variable that it reads is saved, no operation
draws from a counter in its kernel, and a warning names what cannot be checked.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import trainer
from trainer.engine.graph.exchange.collectives import UNSAVED
from trainer.engine.graph.state.variables import pieces_of
from trainer.errors import ConfigError

_ENGINE = tuple(
    f"{Path(trainer.__file__).parent / name}{os.sep}" for name in ("engine", "own_loop", "worker")
)
_PRODUCT = (f"{Path(trainer.__file__).parent}{os.sep}",)
# It calls the model: what reads a variable below it is a layer.
_CALLS_MODEL = str(Path(__file__).parents[1] / "keras3" / "keras3_model.py")
_RANDOMNESS = (f"{Path(__file__).parents[1] / 'randomness'}{os.sep}",)
_OPTIMIZERS = f"{os.sep}optimizers{os.sep}"

_STATELESS = re.compile(r"Stateless(?!RandomGet)\w*(Random|Normal|Multinomial|Shuffle|Distorted)")

_WARNINGS = {
    "Timestamp": "reads the clock, which no continued run can repeat",
    "PyFunc": "calls Python code, whose state no checkpoint holds; if it has none, pass "
    "stateful=False",
    "EagerPyFunc": "calls Python code, whose state no checkpoint holds",
}

_HOW_TO_DRAW = (
    "use tf.random.normal, uniform, truncated_normal or categorical, not in tf.vectorized_map"
)
IN_TASK = (
    "make it with self.add_weight(...) in a layer of the model, or put the model that has it, such "
    "as a teacher, into the task's models"
)
"""Where a task should have its variables."""

IN_LOOP = "pass it to replicator.checkpoint(...), alone or in a model"
"""The same in a training loop of the user's own."""


@dataclass(eq=False, repr=False)
class GraphCheck:
    """Checks the graphs of a run as they are traced.

    Attributes:
        in_shards: whether the bits are to be the same on every layout.
    """

    saved: Callable[[], Mapping[str, Any]]
    warn: Callable[[str], None]
    place: str = IN_TASK
    _: KW_ONLY
    in_shards: bool = False

    def __post_init__(self) -> None:
        self._warn = functools.cache(self.warn)

    def __call__(self, subject: str) -> None:
        """Check the graph whose tracing is about to end.

        Raises:
            ConfigError: a loss of logits is given probabilities, or random numbers are drawn that
                cannot be repeated, or a variable is read that is not saved.
        """
        if tf.executing_eagerly():
            return
        graphs = all_graphs(tf.compat.v1.get_default_graph())
        check_losses(graphs)
        for operation in (operation for graph in graphs for operation in graph.get_operations()):
            if _draws(operation):
                raise ConfigError(
                    f"{subject}: {_named(operation)} draws random numbers that a continued run or "
                    f"another layout could not repeat; {_HOW_TO_DRAW}"
                )
            if operation.type in _WARNINGS and not _is_made_in(operation, _PRODUCT):
                self._warn(f"warning: {subject}: {_named(operation)} {_WARNINGS[operation.type]}")
            if self.in_shards and _has_own_seed(operation):
                self._warn(
                    f"warning: {subject}: {_named(operation)} draws with its own seed, so its "
                    "numbers are not cut as the batch is, and the bits may depend on the layout; "
                    f"{_HOW_TO_DRAW}"
                )
        for name, shape, reader in _strangers(graphs, self.saved()):
            raise ConfigError(
                f"{subject}: {_named(reader)} reads the variable {name} (shape {shape}), which is "
                f"neither trained nor saved; {self.place}, or make it a tf.constant if it "
                "never changes"
            )


def _draws(operation: tf.Operation) -> bool:
    """Return whether an operation draws from a counter: in its kernel, or a generator's."""
    if operation.type.startswith("CudnnRNN"):  # a GRU or LSTM of Keras 3 on a GPU
        return operation.get_attr("dropout") > 0.0
    return _may_draw(operation.type)


@functools.cache
def _may_draw(kind: str) -> bool:
    """Return whether operations of a kind draw.

    Attributes for two seeds are what all that have a counter in their kernel have in common.
    """
    if {"seed", "seed2"} <= {attribute.name for attribute in _attributes(kind)}:
        return "Dataset" not in kind and kind != "ComputeAccidentalHits"  # which never uses them
    return kind.startswith(("Rng", "Stateful", "NonDeterministicInts")) and "Call" not in kind


def _has_own_seed(operation: tf.Operation) -> bool:
    """Return whether an operation draws with a seed that is not the engine's.

    Only integers are followed: a seed that was computed from features is the user's.
    """
    if not _STATELESS.match(operation.type):
        return False
    pending = [operation]
    for other in pending:
        if _is_made_in(other, _RANDOMNESS):
            return False
        pending += [x.op for x in other.inputs if x.dtype.is_integer and x.op not in pending]
    return True


def _named(operation: tf.Operation) -> str:
    scope, place = scope_of(operation), place_of(operation)
    return operation.type + (f" in {scope}" if scope else "") + (f" ({place})" if place else "")


def _strangers(
    graphs: Sequence[tf.Graph], saved: Mapping[str, Any]
) -> Iterator[tuple[str, list[int], tf.Operation]]:
    """Yield name and shape of the variables that are read and not saved, and who reads them."""
    captured = {id(x): x for x, _ in graphs[0].captures if _is_variable_handle(x)}
    checkpoint = tf.train.Checkpoint(**saved)  # of which a view holds no reference
    for node in tf.train.TrackableView(checkpoint).descendants():
        if isinstance(node, tf.Variable) or hasattr(node, "is_sharded_variable"):
            for piece in pieces_of(node):
                for variable in getattr(piece, "values", None) or [piece]:  # of each replica
                    captured.pop(id(variable.handle), None)
    if not captured:
        return
    names = {id(variable.handle): variable.name for variable in graphs[0]._watched_variables}
    for reader, handle in _readers(graphs, captured):
        name = names.get(id(handle), "without a name")
        if UNSAVED not in name.split("/") and not _is_own_read(reader):
            (content, *_) = handle._handle_data.shape_and_type
            sizes = [dimension.size for dimension in content.shape.dim]
            yield name, sizes, reader


def _is_variable_handle(tensor: tf.Tensor) -> bool:
    # Those of tables and iterators do not show what they hold.
    data = getattr(tensor, "_handle_data", None) if tensor.dtype == tf.resource else None
    return data is not None and data.is_set


def _readers(
    graphs: Sequence[tf.Graph], handles: Mapping[int, tf.Tensor]
) -> Iterator[tuple[tf.Operation, tf.Tensor]]:
    """Yield the operations that take these handles, also through the captures of functions."""
    handle_of: dict[Any, tf.Tensor] = dict(handles)
    for graph in graphs:  # those outside first
        for outer, inner in graph.captures:
            if (handle := handle_of.get(_key(outer))) is not None:
                handle_of[_key(inner)] = handle
        for operation in graph.get_operations():
            if operation.type.endswith("VariableOp") or operation.type.startswith("Resource"):
                handle = handle_of.get(_key(operation.inputs[0]))
                if handle is not None:
                    yield operation, handle


def _key(tensor: tf.Tensor) -> Any:
    return (id(tensor.graph), tensor.name) if tf.is_symbolic_tensor(tensor) else id(tensor)


def _is_own_read(operation: tf.Operation) -> bool:
    """Return whether the engine or an optimizer reads a variable, rather than a model."""
    for frame in frames_of(operation):
        if not is_library(frame.filename):
            break
        if _OPTIMIZERS in frame.filename:
            return True
    return _is_made_in(operation, _ENGINE)


def _is_made_in(operation: tf.Operation, folders: tuple[str, ...]) -> bool:
    """Return whether the innermost code that is no library's is in one of the folders."""
    for frame in frames_of(operation):
        if not is_library(frame.filename) and frame.filename != _CALLS_MODEL:
            return frame.filename.startswith(folders)
    return False


_LOSSES = ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", "Softplus")
"""Operations whose first input is logits; the last is of labels of 0 and 1."""

_SAME_VALUES = {
    "Cast", "Identity", "EnsureShape", "CheckNumerics", "Reshape", "Squeeze", "ExpandDims",
    "Transpose", "StridedSlice", "Slice", "GatherV2", "Pack", "Unpack", "Split", "SplitV",
    "ConcatV2", "Neg", "Abs", "Select", "SelectV2",
}  # fmt: skip
"""Operations that change nothing of probabilities but shape, type and sign, or leave some out."""

_CONSTANTS = ("Const", "Fill", "ZerosLike", "OnesLike")
"""What probabilities may be masked or padded with."""


def check_losses(graphs: Sequence[tf.Graph]) -> None:
    """Check that no loss of logits is given probabilities.

    It would train something else, without an error: most examples of Keras end in a softmax or a
    sigmoid.
    """
    for inner in graphs:
        for operation in inner.get_operations():
            logits = _logits(operation)
            if logits is None or (source := _activation(inner, logits)) is None:
                continue
            kind, scope = source
            raise ConfigError(
                f"model: the loss takes logits, and is given the probabilities of a {kind}"
                f"{f' (layer {scope})' if scope else ''}, of which it would take the {kind} again; "
                "remove that activation: mode=predict and mode=export give probabilities"
            )


def _logits(operation: tf.Operation) -> tf.Tensor | None:
    if operation.type in _LOSSES:
        return operation.inputs[0]
    if operation.type == "Log1p" and operation.inputs[0].op.type == "Exp":
        return operation.inputs[0].op.inputs[0]  # as `sigmoid_cross_entropy_with_logits` writes it
    return None


def _activation(graph: tf.Graph, tensor: tf.Tensor) -> tuple[str, str] | None:
    """Return `softmax` or `sigmoid` and its layer, if that is where a tensor's values come from.

    Not where logits stand next to the probabilities: the loss may be of these alone.
    """
    source: tuple[str, str] | None = None
    pending = [tensor]
    visited = set()
    while pending:
        tensor = pending.pop()
        operation = tensor.op
        if id(tensor) in visited:
            continue
        visited.add(id(tensor))
        if operation.type in ("Softmax", "Sigmoid"):
            source = operation.type.lower(), scope_of(operation)
        elif operation.type == "IdentityN":
            pending.append(operation.inputs[tensor.value_index])
        elif operation.type in _SAME_VALUES:
            pending += [x for x in operation.inputs if x.dtype.is_floating]
        elif operation.type in _CONSTANTS:
            continue
        elif (inner_source := _called_activation(graph, tensor)) is not None:
            source = inner_source
        else:
            return None
    return source


def _called_activation(graph: tf.Graph, tensor: tf.Tensor) -> tuple[str, str] | None:
    """Return the same for what a called function returns; None also where none is called."""
    if tensor.op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        for item in called_functions(tensor.op.node_def):
            inner = getattr(graph._get_function(item.name), "graph", None)
            if inner and (source := _activation(inner, inner.outputs[tensor.value_index])):
                return source[0], "/".join(filter(None, (scope_of(tensor.op), source[1])))
    return None


def place_of(operation: tf.Operation) -> str:
    """Return file and line of the innermost code that is neither a library's nor the engine's."""
    for frame in frames_of(operation):
        if not is_library(frame.filename) and not frame.filename.startswith(_ENGINE):
            path = os.path.relpath(frame.filename)
            path = frame.filename if path.startswith(os.pardir) else path
            return f"{path}:{frame.lineno}"
    return ""


def scope_of(operation: tf.Operation) -> str:
    """Return an operation's name scopes, without those of loops and replicas around them."""
    return re.sub(r"^((while|replica)(_\d+)?/)+", "", operation.name).rpartition("/")[0]


def frames_of(operation: tf.Operation) -> list[Any]:
    """Return the stack that an operation was made in, the innermost frame first."""
    return list(reversed(list(operation.traceback or ())))


@functools.cache
def is_library(filename: str) -> bool:
    """Return whether a file is one of TensorFlow's, Keras' or Python's own."""
    libraries = (sys.modules.get(name) for name in ("tensorflow", "tf_keras", "keras"))
    paths = (Path(str(module.__file__)) for module in libraries if module)
    folders = tuple(f"{path.parent}{os.sep}" for path in paths)
    standard = sysconfig.get_paths()["stdlib"]
    return filename.startswith(folders) or (
        filename.startswith(standard) and "site-packages" not in filename
    )


def called_functions(node: Any) -> Iterator[Any]:
    """Yield the functions in the attributes of a node, a NodeDef, each a mutable NameAttrList."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        yield from value.list.func


def all_graphs(graph: tf.Graph) -> list[tf.Graph]:
    """Return a graph and those of all functions that it calls, each once.

    Functions of tf.data are not among them, nor are those that have no graph.
    """
    graphs = [graph]
    visited = {id(graph)}
    for outer in graphs:
        for operation in outer.get_operations():
            if not _calls(operation.type):
                continue
            for item in called_functions(operation.node_def):
                # A function that was loaded from a file has no graph.
                inner = getattr(outer._get_function(item.name), "graph", None)
                if inner is not None and id(inner) not in visited:
                    visited.add(id(inner))
                    graphs.append(inner)
    return graphs


@functools.cache
def _calls(kind: str) -> bool:
    types = {attribute.type for attribute in _attributes(kind)}
    return bool(types & {"func", "list(func)"}) and "Dataset" not in kind


def _attributes(kind: str) -> Any:
    definition = op_def_registry.get(kind)
    return definition.attr if definition else ()
