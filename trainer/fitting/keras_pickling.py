"""How objects of TensorFlow and of both Kerases are pickled: as they are, attribute by attribute.

Keras itself writes configurations, which need `get_config` of every class, and lose what is set
later. Touches private names of both Kerases; tests/fitting/test_keras_pickling.py fails when they
move.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from trainer.fitting.initial_draws import Draw, config_of, drawn
from trainer.keras_objects import optimizer_options

LIBRARIES = ("keras", "tf_keras")

_EMPTIED = {
    "_inbound_nodes", "_outbound_nodes", "_inbound_nodes_value", "_outbound_nodes_value",
    "_losses", "_losses_override",
}  # fmt: skip
"""What calls leave in a layer: calling it again in the graph of its model adds the nodes."""

_CACHES = {
    "history", "train_function", "train_tf_function", "test_function", "predict_function",
    "_cluster_coordinator", "_call_result",
}  # fmt: skip
"""What training leaves in a model; None before it."""

_LEFT_OUT = {
    "_thread_local", "_metrics_lock", "_obj_reference_counts_dict", "_checkpoint",
    "_compiled_trainable_state",
}  # fmt: skip
"""What `_restore` makes again, or Keras when it is needed."""

_GRAPH = {
    "inputs", "outputs", "_inputs", "_outputs", "_inputs_struct", "_outputs_struct", "_nodes",
    "_nested_inputs", "_nested_outputs", "_operations", "_operations_by_depth", "_nodes_by_depth",
    "_network_nodes", "_input_layers", "_output_layers", "_input_coordinates",
    "_output_coordinates", "_feed_inputs", "_layer_call_argspecs", "_tensor_usage_count",
    "_created_nodes", "_output_mask_cache", "_output_tensor_cache", "_output_shape_cache",
}  # fmt: skip
"""Attributes of a functional model that its calls of layers make again."""


_TRACKED = {
    "TrackedList": list, "TrackedDict": dict, "TrackedOrderedDict": OrderedDict, "TrackedSet": set,
}  # fmt: skip


def reduce(item: Any) -> Any:
    """Return how an object is pickled; NotImplemented: by its own method."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or isinstance(item, type):
        return NotImplemented
    if isinstance(item, types.ModuleType):
        return _reduced_module(item, tensorflow)
    if isinstance(item, tensorflow.data.Dataset):
        return _dataset, (_serialized(item, tensorflow), item.element_spec)
    if isinstance(item, tensorflow.Variable):
        return _reduced_variable(item)
    if isinstance(item, tensorflow.types.experimental.PolymorphicFunction):
        return _function, (item.python_function, item.input_signature, item._autograph)
    if type(item).__name__ in ("_DictWrapper", "_TupleWrapper"):  # which are marked as a dict
        return type(item), (item.__wrapped__,)
    if hasattr(type(item), "num_replicas_in_sync") and hasattr(type(item), "extended"):
        return tensorflow.distribute.get_strategy, ()  # that in whose scope it is loaded
    if (library := library_of(item)) is None:
        return NotImplemented
    return _reduced_object(item, library)


def _serialized(dataset: Any, tensorflow: Any) -> bytes:
    """Return the graph of a dataset that gives the same elements whenever it is read."""
    try:
        policy = tensorflow.data.experimental.ExternalStatePolicy.FAIL
        graph = dataset._as_serialized_graph(external_state_policy=policy).numpy()
    except tensorflow.errors.OpError as error:
        raise TypeError(f"this tf.data.Dataset depends on the process: {error}") from error
    if b"Shuffle" in graph:
        raise TypeError("this tf.data.Dataset shuffles")
    message = tensorflow.compat.v1.GraphDef.FromString(graph)
    message.library.function.sort(key=lambda function: function.signature.name)
    return bytes(message.SerializeToString(deterministic=True))


def _dataset(graph: bytes, spec: Any) -> Any:
    tensorflow = import_module("tensorflow")
    variant = tensorflow.raw_ops.DatasetFromGraph(graph_def=graph)
    return tensorflow.data.experimental.from_variant(variant, spec)


def is_of_keras(module: str) -> bool:
    """Return whether a module is one of either Keras."""
    return module.partition(".")[0] in LIBRARIES


def library_of(item: Any) -> Any:
    """Return the Keras that the class of an object is of or is derived from; None: neither."""
    for base in type(item).__mro__:
        if (name := base.__module__.partition(".")[0]) in LIBRARIES:
            return sys.modules[name]
    return None


def is_keras3() -> bool:
    """Return whether `tf.keras` is Keras 3 in this process; it is tf_keras in those that train."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or "keras" not in sys.modules:
        return False
    return bool(tensorflow.keras.Model.__module__.startswith("keras."))


def _reduced_module(item: types.ModuleType, tensorflow: Any) -> Any:
    """Pickle TensorFlow as one with the Keras that it has here."""
    is_names = item is vars(tensorflow).get("keras")
    if not (is_names or item is tensorflow) or not is_keras3():
        return NotImplemented
    return (import_module, (_KERAS3,)) if is_names else (_tensorflow_with_keras3, ())


_KERAS3 = "keras._tf_keras.keras"


@cache
def _tensorflow_with_keras3() -> types.ModuleType:
    tensorflow = import_module("tensorflow")
    module = types.ModuleType("tensorflow")
    vars(module).update(vars(tensorflow), keras=import_module(_KERAS3))
    vars(module)["__getattr__"] = lambda name: getattr(tensorflow, name)
    return module


def _reduced_variable(item: Any) -> Any:
    if hasattr(item, "_variable") and library_of(item):  # one of mixed precision
        return _autocast, (item._variable,)
    values = item.numpy()
    options = {
        "trainable": item.trainable, "name": item.name.partition(":")[0], "dtype": item.dtype.name,
        "aggregation": item.aggregation, "synchronization": item.synchronization,
        "shape": None if item.shape.is_fully_defined() else item.shape,
    }  # fmt: skip
    return _variable, (drawn(values) or values, options)


def _variable(values: Draw | np.ndarray, options: Mapping[str, Any]) -> Any:
    initial = values.values if isinstance(values, Draw) else values
    return import_module("tensorflow").Variable(initial, **options)


def _autocast(variable: Any) -> Any:
    module = import_module("tf_keras.src.mixed_precision.autocast_variable")
    return module.create_autocast_variable(variable)


def _function(python: Callable[..., Any], signature: Any, autograph: bool) -> Any:
    return import_module("tensorflow").function(
        python, input_signature=signature, autograph=autograph
    )


def _reduced_object(item: Any, library: Any) -> Any:
    kind = type(item)
    is_of_library = is_of_keras(kind.__module__)
    is_layer = isinstance(item, library.layers.Layer)
    if is_of_library and is_layer and hasattr(kind, "save_assets"):
        return _reduced_table(item)
    if is_of_library and isinstance(item, library.initializers.Initializer):
        return kind.from_config, (config_of(item),)
    if is_of_library and (
        isinstance(item, library.layers.InputLayer) or kind.__module__.endswith(".tf_op_layer")
    ):
        return kind.from_config, (item.get_config(),)
    if _is_built_optimizer(item, library):  # its state is that of other variables
        return kind.from_config, (optimizer_options(item),)
    if kind.__name__ == "RandomGenerator" and is_of_library:
        return kind, (item._seed, item._rng_type)
    if kind.__name__ == "KerasTensor" and is_of_library:
        raise TypeError("it is symbolic, and belongs to the model that it is a part of")
    if kind.__name__ in _TRACKED and is_of_library:
        return _new, (kind,), (_TRACKED[kind.__name__](item), item.tracker), None, None, _track
    if kind.__name__ == "DynamicBackend" and is_of_library:
        return kind, (item.name,)
    if kind.__name__ == "ContextValueCache" and is_of_library:
        return kind, (item.default_factory,)
    if kind.__name__ == "Tracker" and is_of_library:
        return _new, (kind,), {**vars(item), "stored_ids": {}}
    if not (is_layer or hasattr(kind, "_unpickle_model")):  # of which Keras would pickle a file
        return NotImplemented
    return _new, (kind,), _state(item, library), None, None, _restore


def _is_built_optimizer(item: Any, library: Any) -> bool:
    if isinstance(item, library.optimizers.Optimizer):
        return bool(getattr(item, "built", False) or getattr(item, "_built", False))
    legacy = getattr(library.optimizers, "legacy", None)
    return legacy is not None and isinstance(item, legacy.Optimizer) and bool(item.weights)


def _track(item: Any, state: tuple[Any, Any]) -> None:
    """Fill a collection of Keras 3 whose members are tracked already."""
    values, item.tracker = state
    kind = type(values)
    kind.extend(item, values) if kind is list else kind.update(item, values)


def _reduced_table(item: Any) -> Any:
    """Pickle a layer with its own table, such as a vocabulary, which is no variable."""
    options = {
        name: value if not callable(own := getattr(item, f"_{name}", None)) else own
        for name, value in item.get_config().items()
    }
    if isinstance(words := vars(item).get("input_vocabulary"), np.ndarray):
        item.input_vocabulary = words.tolist()  # for tf_keras, which tests whether it is true
    with tempfile.TemporaryDirectory() as folder:
        item.save_assets(folder)
        files = {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}
    store: dict[str, Any] = {}
    item.save_own_variables(store)
    arrays = {name: np.asarray(value) for name, value in store.items()}
    return _table, (type(item), options, files, arrays)


def _table(
    kind: Any, options: Mapping[str, Any], files: Mapping[str, bytes], arrays: Mapping[str, Any]
) -> Any:
    layer = kind(**options)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        layer.load_own_variables(arrays)
        layer.load_assets(folder)
    return layer


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


def _state(item: Any, library: Any) -> dict[str, Any]:
    """Return the attributes of an object; those of a functional model as calls of its layers."""
    methods = {name for name, value in vars(_new(type(item))).items() if callable(value)}
    state: dict[str, Any] = {
        name: [] if name in _EMPTIED else None if name in _CACHES else value
        for name, value in vars(item).items()
        if name not in methods and name not in _LEFT_OUT
    }
    # What checkpoints follow has the same attributes again.
    left_out = _EMPTIED | _GRAPH
    if followed := state.get("_self_unconditional_dependency_names"):
        kept = {name: value for name, value in followed.items() if name not in left_out}
        state["_self_unconditional_dependency_names"] = kept
    if references := state.get("_self_unconditional_checkpoint_dependencies"):
        kept_references = [reference for reference in references if reference.name not in left_out]
        state["_self_unconditional_checkpoint_dependencies"] = kept_references
    if "_nodes_by_depth" in state:
        state = {name: value for name, value in state.items() if name not in _GRAPH}
        state["graph of layers"] = _calls(item, library)
    return state


def _restore(item: Any, state: dict[str, Any]) -> None:
    calls = state.pop("graph of layers", None)
    attributes = vars(item)
    is_keras3 = library_of(item).__name__ == "keras"
    if calls is not None and not any(kind.__name__ == "Functional" for kind in type(item).__mro__):
        module = "keras.src.models.model" if is_keras3 else "tf_keras.src.engine.training"
        import_module(module).inject_functional_model_class(type(item))
    if calls is not None and is_keras3:
        with import_module("keras.src.utils.tracking").DotNotTrackScope():
            function = import_module("keras.src.ops.function").Function
            function.__init__(item, *_called(calls), name=state["name"])
    attributes.update(state)
    if "_supports_masking" in state and not is_keras3:
        attributes.update(_thread_local=threading.local(), _metrics_lock=threading.Lock())
    if calls is not None and not is_keras3:
        attributes.update(_created_nodes=set())
        item._init_graph_network(*_called(calls))
        tracked = set(map(id, item._self_tracked_trackables))
        if added := [layer for layer, *_ in calls[1] if id(layer) not in tracked]:
            item._insert_layers(added)  # losses and metrics, of which nothing is computed
    if "compiled_loss" in state:
        attributes["_compiled_trainable_state"] = item._get_trainable_state()
    if tracker := attributes.get("_tracker"):
        stores = {name: store for name, (_, store) in tracker.config.items()}
        tracker.stored_ids = {name: set(map(id, store)) for name, store in stores.items()}
    if "_train_counter" in state:
        saver = import_module("tensorflow").train.Checkpoint(root=weakref.ref(item))
        attributes["_checkpoint"] = saver


_HISTORY = {
    "_compile_config", "_distribute_strategy", "_distribution_strategy", "_train_counter",
    "_test_counter", "_predict_counter", "_path", "_parent_path", "_initial_epoch", "_output_names",
    "output_names", "input_names", "_feed_input_names", "_feed_input_shapes",
}  # fmt: skip
"""Attributes that repeat others, or record what was done with an object."""

_OF_LAYERS = {
    "_trainable", "activity_regularizer", "_activity_regularizer", "name", "_name", "_dtype_policy",
    "_trainable_variables", "_non_trainable_variables", "_trainable_weights", "_layers",
    "_non_trainable_weights", "_self_tracked_trackables", "_callable_losses",
}  # fmt: skip
"""Attributes of every layer that identify it."""


def identity(item: Any, reduced: Any) -> Any:
    """Return how an object is pickled, without what differs between processes or depends on chance.

    Args:
        reduced: how it is pickled; not NotImplemented.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow and isinstance(item, tensorflow.Variable):
        make, (values, options) = reduced
        return make, (values, {**options, "name": None})
    if (library := library_of(item)) is None:
        return reduced
    kind, arguments, *rest = reduced
    name = type(item).__name__
    if name == "Tracker":
        return kind, arguments
    if name in _TRACKED:
        return kind, arguments, rest[0][0]
    if name in ("RandomGenerator", "SeedGenerator"):
        return kind, (getattr(item, "_initial_seed", None),)
    if arguments and isinstance(arguments[0], dict):
        return kind, (unnumbered(arguments[0]),)
    if kind is _table:
        return kind, (arguments[0], unnumbered(arguments[1]), *arguments[2:])
    if not rest or not isinstance(rest[0], dict):
        return reduced
    is_layer = isinstance(item, library.layers.Layer)
    left_out = _HISTORY | (_bookkeeping(library.__name__) if is_layer else set())
    state = {k: v for k, v in rest[0].items() if k not in left_out and k[:6] != "_self_"}
    if getattr(state.get("generator"), "_initial_seed", 0) is None:
        state.pop("seed", None)  # that Keras has chosen: RandomCrop keeps it
    return kind, arguments, unnumbered(state)


@cache
def _bookkeeping(library: str) -> set[str]:
    return vars(sys.modules[library].layers.Layer(name="layer")).keys() - _OF_LAYERS


def unnumbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with a name to which Keras has added no number.

    The second model of a process has `dense_1` where the first has `dense`.
    """
    return {
        key: re.sub(r"_\d+(?=[/_]|$)", "", value)
        if key in ("name", "_name") and isinstance(value, str)
        else value
        for key, value in state.items()
    }


class _Symbol(int):
    """The number of a symbolic tensor of a functional model."""


def _calls(model: Any, library: Any) -> Any:
    """Return the calls that make the outputs of a functional model of its inputs."""
    numbers: dict[int, _Symbol] = {}
    tree = _tree(library)

    def numbered(nest: Any) -> Any:
        def number(x: Any) -> Any:
            is_symbolic = type(x).__name__.endswith("KerasTensor")
            return numbers.setdefault(id(x), _Symbol(len(numbers))) if is_symbolic else x

        return tree.map_structure(number, nest)

    calls = [
        (layer, numbered(arguments), numbered(keywords), numbered(outputs))
        for layer, arguments, keywords, outputs in _nodes(model)
    ]
    ends = (
        (model._inputs_struct, model._outputs_struct)
        if library.__name__ == "keras"
        else (model._nested_inputs, model._nested_outputs)
    )
    return library.__name__, calls, *map(numbered, ends)


def _nodes(model: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield layer, arguments and outputs of each call, after those that it needs."""
    for _, nodes in sorted(model._nodes_by_depth.items(), reverse=True):
        for node in nodes:
            layer = node.operation if hasattr(node, "operation") else node.layer
            if node.is_input:
                yield layer, None, None, node.outputs
            elif hasattr(node, "operation"):
                yield layer, node.arguments.args, node.arguments.kwargs, node.outputs
            else:
                yield layer, node.call_args, node.call_kwargs, node.outputs


def _called(recorded: Any) -> tuple[Any, Any]:
    """Make the calls again; return the symbolic inputs and outputs."""
    name, calls, *ends = recorded
    tree = _tree(sys.modules[name])
    tensors: dict[int, Any] = {}

    def found(nest: Any) -> Any:
        return tree.map_structure(lambda x: tensors[x] if isinstance(x, _Symbol) else x, nest)

    for layer, arguments, keywords, outputs in calls:
        result = layer.output if arguments is None else layer(*found(arguments), **found(keywords))
        for symbol, tensor in zip(tree.flatten(outputs), tree.flatten(result), strict=True):
            tensors[symbol] = tensor
    return found(ends[0]), found(ends[1])


def _tree(library: Any) -> Any:
    return library.tree if library.__name__ == "keras" else import_module("tensorflow").nest
