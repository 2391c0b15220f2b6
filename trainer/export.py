"""mode=export: a checkpoint as a SavedModel that plain TensorFlow serves, its weights, a model card, and TensorFlow Lite if asked for.

Everything is written beside its place and renamed: what is there is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer import build, model_card, selection
from trainer.channel import Channel
from trainer.errors import ConfigError
from trainer.files import fsync_directory, writing
from trainer.protocols import Dataset, Task
from trainer.schema import Experiment

SAVED_MODEL, LITE, CARD = "saved_model", "model.tflite", "MODEL_CARD.md"


def run(experiment: Experiment, run_dir: Path, channel: Channel) -> None:
    """Exports the checkpoint that the command means, with the averaged weights if averages are kept.

    Raises:
        ConfigError: there is no such checkpoint, or the model cannot be written in a form that is asked for.
        StorageError: the disk does not take it.
    """
    step = selection.step_of(run_dir, experiment.checkpoint)
    dataset, state, checkpoints = build.learned(experiment, run_dir, channel)
    checkpoints.restore(step)
    state.swap_averages()
    name, model = next(iter(state.task.models.items()))
    path = run_dir / "export" / f"{name}-{step}"
    with writing(path, tf.errors.OpError):
        made = _emptied(path)
        signatures = _signatures(state.task, dataset)
        _save(signatures, made / SAVED_MODEL)
        if experiment.export.weights is not None:
            _save_weights(model, made / f"model.{experiment.export.weights}")
        if experiment.export.tflite:
            (made / LITE).write_bytes(_lite(made / SAVED_MODEL))
        sizes = {"parameters": model.count_params(), "input_shape": signatures["serving_default"].inputs[0].shape[1:].as_list()}
        (made / CARD).write_text(model_card.text(experiment, run_dir, step, dataset, list(signatures), **sizes))
        _put(made, path)
    channel.line(f"Exported step {step} to {path}.")


def _save(signatures: dict[str, Any], path: Path) -> None:
    """Writes functions and the variables that they read, and nothing of Keras."""
    owner = tf.Module()
    owner.read = [variable for function in signatures.values() for variable in function.variables]
    tf.saved_model.save(owner, str(path), signatures=signatures)


def _signatures(task: Task, dataset: Dataset) -> dict[str, Any]:
    """Traces what is served: functions from one tensor to name -> tensor, without AutoGraph, as the steps are."""
    if not hasattr(task, "predict_step"):
        # All that is known of such a task is that its first model is what it makes.
        model = next(iter(task.models.values()))
        return {
            "serving_default": _traced(lambda features: {"outputs": model(features, training=False)}, model.input_shape[1:], "features")
        }

    def features_to_predictions(features: tf.Tensor) -> dict[str, tf.Tensor]:
        count = tf.shape(features, tf.int64)[0]
        # The engine's own names, for tasks that look at them.
        return dict(task.predict_step({"features": features, "weight": tf.ones([count]), "id": tf.range(count)}))

    signatures = {"serving_default": _traced(features_to_predictions, dataset.input_shape, "features")}
    decode = getattr(dataset, "decode", None)
    example = decode and _given_by(decode)
    if example is not None:

        def images_to_predictions(images: tf.Tensor) -> dict[str, tf.Tensor]:
            features = tf.map_fn(decode, images, fn_output_signature=example)
            return features_to_predictions(dataset.transform({"features": features}, None)["features"])

        signatures["serving_images"] = _traced(images_to_predictions, (), "images", tf.string)
    return signatures


def _given_by(decode: Callable[[tf.Tensor], tf.Tensor]) -> tf.TensorSpec | None:
    """Gives shape and type of what `decode` gives, without decoding anything; None: no file holds such images, of two channels say."""
    try:
        traced = tf.function(decode, autograph=False).get_concrete_function(tf.TensorSpec([], tf.string))
    except ValueError:
        return None
    return tf.TensorSpec(traced.output_shapes, traced.output_dtypes)


def _traced(function: Callable[[tf.Tensor], dict[str, tf.Tensor]], shape: Any, name: str, dtype: tf.DType = tf.float32) -> Any:
    """Traces a function of a batch of any size; its numbers come out as float32, and a classifier's also as `label`."""

    def outputs(given: tf.Tensor) -> dict[str, tf.Tensor]:
        found = {key: tf.cast(value, tf.float32) if value.dtype.is_floating else value for key, value in function(given).items()}
        if "probabilities" in found:
            found["label"] = tf.argmax(found["probabilities"], axis=-1)
        return found

    return tf.function(outputs, autograph=False).get_concrete_function(tf.TensorSpec([None, *shape], dtype, name))


def _save_weights(model: tf.keras.Model, path: Path) -> None:
    try:
        model.save(path)
    except (NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"export.weights ({path.suffix[1:]}): Keras cannot write this model so: {reason}; add export.weights=null"
        ) from error


def _lite(saved_model: Path) -> bytes:
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved_model), signature_keys=["serving_default"])
    try:
        converted: bytes = converter.convert()
    except Exception as error:  # of whatever kind, mostly of many lines
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"export.tflite (true): this model cannot be converted: {reason}; add export.tflite=false") from error
    return converted


def _emptied(path: Path) -> Path:
    """Gives an empty directory beside `path`; what a kill has left there is removed."""
    path.parent.mkdir(exist_ok=True)
    for left in path.parent.glob(".*.tmp"):
        shutil.rmtree(left)
    made = path.with_name(f".{path.name}.new.tmp")
    made.mkdir()
    return made


def _put(made: Path, path: Path) -> None:
    """Puts a finished directory in its place; an earlier one goes."""
    old = path.with_name(f".{path.name}.old.tmp")
    if path.exists():
        path.rename(old)
    made.rename(path)
    fsync_directory(path.parent)
    shutil.rmtree(old, ignore_errors=True)
