"""mode=export: a checkpoint as a SavedModel for plain TensorFlow, its weights, and a model card.

Also as a TensorFlow Lite model if `export.tflite` is set. Everything is written next to its
destination and renamed, so a directory that exists is complete.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.engine.graph.input.feature_specs import feature_specs
from trainer.errors import ConfigError
from trainer.files import fsync_directory, writing
from trainer.protocols import (
    Dataset,
    DatasetDefaults,
    Served,
    Task,
    TaskDefaults,
    paths,
    with_defaults,
)
from trainer.runs import checkpoint_retention
from trainer.runs.directory import fitted_file
from trainer.text import first_line
from trainer.worker.export import model_card
from trainer.worker.run import SavedRun

SAVED_MODEL = "saved_model"
LITE = "model.tflite"
CARD = "MODEL_CARD.md"


def run(saved: SavedRun) -> None:
    """Export the checkpoint that the command names, with averaged weights if averages are kept.

    Raises:
        ConfigError: there is no such checkpoint, or the model has no such format.
        StorageError: it could not be written.
    """
    experiment, run_dir = saved.experiment, saved.run_dir
    step = checkpoint_retention.select_step(run_dir, experiment.checkpoint)
    saved.checkpointer.restore(step)
    dataset, state = saved.dataset, saved.state
    state.swap_averages()
    name, model = next(iter(state.task.models.items()))
    path = run_dir / "export" / f"{name}-{step}"
    with writing(path, tf.errors.OpError):
        temporary = _empty_directory_beside(path)
        serve = with_defaults(state.task, TaskDefaults).serve
        if serve is None:
            served = Served(_predicting_functions(state.task, dataset))
        else:
            served = serve(dataset, experiment.predict.sampling)
        _save(served.functions, temporary / SAVED_MODEL, state.task.models.values())
        if experiment.export.weights is not None:
            _save_weights(model, temporary / f"model.{experiment.export.weights}")
        if experiment.export.tflite:
            (temporary / LITE).write_bytes(_lite(temporary / SAVED_MODEL))
        if (fitted := fitted_file(run_dir)).exists():
            shutil.copy(fitted, temporary / fitted.name)
        (temporary / CARD).write_text(
            model_card.text(
                experiment, run_dir, step, dataset, served, parameters={name: model.count_params()}
            )
        )
        _replace(path, temporary)
    saved.channel.line(f"Exported step {step} to {path}.")


def _save(signatures: Mapping[str, Any], path: Path, models: Iterable[Any]) -> None:
    """Write functions, the variables that they read and the models' tables, without Keras."""
    owner = tf.Module()
    owner.read = [variable for function in signatures.values() for variable in function.variables]
    layers = [x for model in models for x in getattr(model, "all_layers", model.submodules)]
    table = tf.saved_model.experimental.TrackableResource
    owner.tables = [x for layer in layers for x in vars(layer).values() if isinstance(x, table)]
    tf.saved_model.save(owner, str(path), signatures=signatures)


def _predicting_functions(task: Task, dataset: Dataset) -> dict[str, Any]:
    """Return functions of features, and of what the dataset makes them of, to name -> tensor."""
    predicts = with_defaults(task, TaskDefaults).predict_step is not None
    model = next(iter(task.models.values()))

    def predict(features: Any) -> Mapping[str, tf.Tensor]:
        if not predicts:  # of such a task only the first model is exported
            return _named(model(features, training=False))
        count = tf.shape(tf.nest.flatten(features)[0], tf.int64)[0]
        # Every batch has the engine's own names too.
        batch = {"features": features, "weight": tf.ones([count]), "id": tf.range(count)}
        return with_defaults(task, TaskDefaults).serve_step(batch)

    specs = feature_specs(dataset)
    if not _are_several(specs):
        own = with_defaults(dataset, DatasetDefaults).feature_specs
        inputs = getattr(getattr(model, "keras_model", model), "input", None)
        if _are_several(inputs):
            specs = inputs
        elif predicts:
            dtype = tf.float32 if own is None else own.dtype
            specs = tf.TensorSpec([None, *dataset.input_shape], dtype)
        else:
            specs = tf.TensorSpec([None, *model.input_shape[1:]], tf.float32)
    prefix = "input" if _are_several(specs) else "features"
    keys = paths(specs, "" if isinstance(specs, dict) else prefix, "_")
    if len(set(keys)) < len(keys):
        raise ConfigError(
            f"mode (export): inputs are named {', '.join(keys)}, two are equal; rename one"
        )
    named = {
        key: tf.TensorSpec([None, *x.shape[1:]], x.dtype)
        for key, x in zip(keys, tf.nest.flatten(specs), strict=True)
    }

    def by_name(inputs: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        return predict(tf.nest.pack_sequence_as(specs, [inputs[key] for key in keys]))

    functions = {"serving_default": _traced(by_name, named)}
    if predicts and not tf.nest.is_nested(specs):
        functions |= _raw_functions(predict, dataset)
    return functions


def _raw_functions(
    predict: Callable[[Any], Mapping[str, tf.Tensor]], dataset: Dataset
) -> dict[str, Any]:
    """Return functions of what else a dataset makes features of.

    Columns of a table; bytes of images, if a file can hold such; texts, if TensorFlow can encode
    them as the dataset does.
    """
    own = with_defaults(dataset, DatasetDefaults)
    functions = {}
    if (from_columns := own.from_columns) is not None and own.column_specs is not None:
        functions["serving_columns"] = _traced(
            lambda columns: predict(from_columns(columns)), own.column_specs
        )
    if (decode := own.decode) is not None and (example := _decoded_spec(decode)) is not None:

        def of_images(inputs: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
            features = tf.map_fn(decode, inputs["images"], fn_output_signature=example)
            return predict(dataset.transform({"features": features}, None)["features"])

        functions["serving_images"] = _traced(
            of_images, {"images": tf.TensorSpec([None], tf.string)}
        )
    if (from_texts := own.from_texts) is not None:
        functions["serving_texts"] = _traced(
            lambda inputs: predict(from_texts(inputs["texts"])),
            {"texts": tf.TensorSpec([None], tf.string)},
        )
    return functions


def _decoded_spec(decode: Callable[[tf.Tensor], tf.Tensor]) -> tf.TensorSpec | None:
    """Return shape and type of a decoded image; None if no file holds such, as of two channels."""
    try:
        traced = tf.function(decode, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.string)
        )
    except ValueError:
        return None
    return tf.TensorSpec(traced.output_shapes, traced.output_dtypes)


def _are_several(nest: Any) -> bool:
    if isinstance(nest, (list, tuple)) and len(nest) == 1 and hasattr(nest[0], "shape"):
        return False  # of Keras 3, which takes the input itself too
    return isinstance(nest, (dict, list, tuple))


def _named(outputs: Any) -> dict[str, tf.Tensor]:
    """Return what a model returns, by name: several outputs have their keys, or numbers from 1."""
    prefix = "output" if isinstance(outputs, (list, tuple)) else ""
    names = paths(outputs, prefix, "_")
    return dict(zip([name or "outputs" for name in names], tf.nest.flatten(outputs), strict=True))


def _traced(
    function: Callable[[Mapping[str, tf.Tensor]], Mapping[str, tf.Tensor]],
    specs: Mapping[str, tf.TensorSpec],
) -> Any:
    """Trace a function of tensors by name, for a batch of any size; without AutoGraph."""

    def predictor(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return _outputs(function(inputs))

    named = {key: tf.TensorSpec(spec.shape, spec.dtype, key) for key, spec in specs.items()}
    return tf.function(predictor, autograph=False).get_concrete_function(**named)


def _outputs(predictions: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return predictions with floating-point numbers as float32, and of one class `label`."""
    outputs = {
        key: tf.cast(value, tf.float32) if value.dtype.is_floating else value
        for key, value in predictions.items()
    }
    is_classifier = "probabilities" in outputs and "predicted" not in outputs
    if is_classifier and outputs["probabilities"].shape.rank == 2:
        outputs["label"] = tf.argmax(outputs["probabilities"], axis=-1)
    return outputs


def _save_weights(model: tf.keras.Model, path: Path) -> None:
    try:
        with _without_advice():
            model.save(path)
    except (NotImplementedError, TypeError, ValueError) as error:
        reason = " ".join(str(error).strip().partition("\n\n")[0].split()).rstrip(".")
        raise ConfigError(
            f"export.weights ({path.suffix[1:]}): Keras cannot write this model so: {reason}; "
            "add export.weights=null"
        ) from error


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence both Keras where they advise to write a `.keras` file: the user chose the format."""
    absl = logging.getLogger("absl")
    was_disabled, absl.disabled = absl.disabled, True
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            yield
    finally:
        absl.disabled = was_disabled


def _lite(saved_model: Path) -> bytes:
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(saved_model), signature_keys=["serving_default"]
    )
    try:
        converted: bytes = converter.convert()
    except Exception as error:  # the converter raises many types, mostly with many lines
        reason = first_line(error)
        raise ConfigError(
            f"export.tflite (true): this model cannot be converted: {reason}; "
            "add export.tflite=false"
        ) from error
    return converted


def _empty_directory_beside(path: Path) -> Path:
    """Return a new temporary directory next to `path`; remove those that a kill has left."""
    path.parent.mkdir(exist_ok=True)
    for left in path.parent.glob(".*.tmp"):
        shutil.rmtree(left)
    temporary = path.with_name(f".{path.name}.new.tmp")
    temporary.mkdir()
    return temporary


def _replace(path: Path, temporary: Path) -> None:
    """Rename a finished directory to `path`, in place of an earlier one."""
    old = path.with_name(f".{path.name}.old.tmp")
    if path.exists():
        path.rename(old)
    temporary.rename(path)
    fsync_directory(path.parent)
    shutil.rmtree(old, ignore_errors=True)
