"""A whole model from a file, of either Keras."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import keras
import tf_keras

from trainer.annotations import Exists
from trainer.keras_objects import (
    READ_ERRORS,
    check_precision,
    constructible,
    open_hdf5,
    read_archive,
)

_NAMES = """
    Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D
    AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add
    AdditiveAttention AlphaDropout Attention Average AveragePooling1D AveragePooling2D
    AveragePooling3D BatchNormalization Bidirectional CategoryEncoding CenterCrop Concatenate
    Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D
    ConvLSTM3D Cropping1D Cropping2D Cropping3D Dense DepthwiseConv1D DepthwiseConv2D
    Discretization Dot Dropout ELU EinsumDense Embedding Flatten GRU GRUCell GaussianDropout
    GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention
    Identity InputLayer LSTM LSTMCell LayerNormalization LeakyReLU LocallyConnected1D
    LocallyConnected2D Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum
    MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization RNN RandomBrightness
    RandomContrast RandomCrop RandomFlip RandomHeight RandomRotation RandomTranslation RandomWidth
    RandomZoom ReLU RepeatVector Rescaling Reshape Resizing ReversibleEmbedding SeparableConv1D
    SeparableConv2D SimpleRNN SimpleRNNCell Softmax SpatialDropout1D SpatialDropout2D
    SpatialDropout3D SpectralNormalization StackedRNNCells Subtract ThresholdedReLU TimeDistributed
    UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D
    ZeroPadding3D
    DTypePolicy FloatDTypePolicy Functional Model Policy Sequential TensorShape __keras_tensor__
    __numpy__ __slice__ __tensor__ __tuple__
"""
_CLASSES = frozenset(_NAMES.split())
"""Layers that compute from their inputs and weights alone, and what they are described with: not
those that hold code, name a file or carry another library's model."""

_PARTS = (keras.constraints, keras.initializers, keras.regularizers)
_MATH = {f"keras.src.ops.{name}" for name in ("image", "linalg", "math", "nn", "numpy")}
_ROOTS = ("builtins", "keras", "tf_keras")
_NOT_COMPUTING = ("deserialize", "get", "serialize")


def saved(
    input_shape: tuple[int, ...],
    num_classes: int | tuple[int, ...],
    *,
    path: Annotated[str, Exists("file")],
    allow: list[str] | None = None,
    compiled: bool = False,
) -> Any:
    """Load a model with its weights, with which the training begins.

    A file may request any class, and a class may do anything while it is built: only layers of
    Keras that only compute are built, and those that the user allows.

    Returns:
        A model from features [B, *input_shape] to outputs [B, num_classes], of the file's Keras.

    Raises:
        ValueError: the file is not a whole model, cannot be read, requests another class, or
            does not fit the dataset.
    """
    file = Path(path).expanduser()
    version, config = _read(file)
    classes = _checked(config, path, _imported(allow or []))
    library = tf_keras if version.startswith("2.") else keras
    model = _load(file, path, classes, library)
    if compiled:
        _compile(model, path, config, classes, library)
    else:
        _check(model, path, input_shape, num_classes)
    check_precision(model, path)
    return model


def _compile(model: Any, path: str, config: Any, classes: Mapping[str, Any], library: Any) -> None:
    """Compile a model as it was saved, without the variables of the optimizer."""
    if not (saved_config := config.get("compile_config")):
        raise ValueError(
            f"path ({path}): the model is not compiled; compile it, and save it again, or add "
            "model.compiled=false"
        )
    if type(model).compile_from_config is not library.Model.compile_from_config:
        model.compile_from_config(saved_config)
        return
    deserialize = library.saving.deserialize_keras_object
    with library.saving.custom_object_scope(constructible(classes)):
        model.compile(**deserialize(saved_config, safe_mode=False))


def _read(file: Path) -> tuple[str, Any]:
    """Return the version of Keras that wrote a file, and the configuration of its model."""
    try:
        if zipfile.is_zipfile(file):
            archive = read_archive(file)
            return str(archive.version), archive.config
        with open_hdf5(file) as group:
            config = json.loads(_text(group.attrs["model_config"]))
            return _text(group.attrs["keras_version"]), config
    except READ_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"path ({file}) is not a whole model of Keras; write it with "
            f"model.save('model.keras') ({reason[:200]})"
        ) from error


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _imported(allow: Sequence[str]) -> dict[str, Any]:
    """Return the classes that the user allows, by name."""
    own = {}
    for place in allow:
        module, _, name = place.rpartition(".")
        try:
            own[name] = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"allow ({place}) cannot be imported: {error}; give the dotted name of a class"
            ) from error
    return own


def _nodes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a configuration of Keras that requests a class."""
    if isinstance(config, list):
        for value in config:
            yield from _nodes(value)
    elif isinstance(config, dict):
        if "class_name" in config:
            yield config
        yield from _nodes(list(config.values()))


def _checked(config: Any, path: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the classes of the user by the names that a file has for them."""
    classes = {}
    for node in _nodes(config):
        name, registered = node["class_name"], node.get("registered_name")
        owned = own.get(name) if isinstance(name, str) else None
        # What has no registered name is imported from the module that the file names.
        if owned and (registered or node.get("module") in (None, owned.__module__)):
            classes |= {name: owned, str(registered): owned}
        elif not _is_known(node):
            shown = str(name)[:80]
            module = str(node.get("module"))
            place = module if module.split(".")[0] in _ROOTS[1:] else "my_package"
            raise ValueError(
                f"path ({path}): the model has {shown}, whose code would be run unseen: it is not "
                "one of Keras' layers that only compute; replace it and save the model again, "
                f"or, if you trust it, add model.allow=[{place}.{shown}]"
            )
    return classes


def _is_known(node: Mapping[str, Any]) -> bool:
    """Return whether a file requests a class or function of Keras that only computes."""
    name, module = node["class_name"], node.get("module")
    is_function = name == "function"
    name = node.get("config") if is_function else name
    if not isinstance(name, str) or node.get("registered_name") not in (None, name):
        return False
    if module is not None and str(module).split(".")[0] not in _ROOTS:
        return False
    if not is_function and (name in _CLASSES or module in _MATH):
        return True
    parts = (keras.activations,) if is_function else _PARTS
    is_public = name[:1] != "_" and name not in _NOT_COMPUTING
    return is_public and any(hasattr(part, name) for part in parts)


def _load(file: Path, path: str, classes: Mapping[str, Any], library: Any) -> Any:
    """Load a model without its optimizer; `classes`: the user's, by their names in the file."""
    try:
        return library.models.load_model(file, custom_objects=constructible(classes), compile=False)
    except (ValueError, TypeError, OSError, KeyError) as error:
        kind = "Keras 3" if library is keras else "tf_keras"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"path ({path}) cannot be loaded by {kind}: {reason[:300]}") from error


def _check(
    model: Any, path: str, input_shape: tuple[int, ...], num_classes: int | tuple[int, ...]
) -> None:
    """Refuse a model that does not fit the dataset or the run."""
    outputs = (num_classes,) if isinstance(num_classes, int) else tuple(num_classes)
    tensors = [getattr(model, name, None) for name in ("inputs", "outputs")]
    for tensor, (what, wanted) in zip(
        tensors, (("input", input_shape), ("output", outputs)), strict=True
    ):
        if not tensor:
            raise ValueError(
                f"path ({path}): the model has no {what} of a known shape; build it with a "
                "keras.Input, and save it again"
            )
        if len(tensor) != 1:
            raise ValueError(
                f"path ({path}): the model has {len(tensor)} {what}s, but must have one; save the "
                "part that is to be trained"
            )
        shape = tuple(tensor[0].shape)[1:]
        if len(shape) != len(wanted) or any(
            size not in (None, other) for size, other in zip(shape, wanted, strict=True)
        ):
            raise ValueError(
                f"path ({path}): the model's {what} is {list(shape)} for each example, but the "
                f"dataset's is {list(wanted)}; choose a model or a dataset that fits"
            )
