"""Initial weights from another run, or from one of its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from trainer.engine.checkpointer import CONNECTION_ERRORS, describe_mismatch
from trainer.engine.foreign_weights import find_foreign, restore_foreign
from trainer.engine.graph.variables import whole
from trainer.engine.named_weights import checkpoint_weights, file_weights, take_by_name
from trainer.errors import CheckpointError
from trainer.runs.checkpoint_marker import committed_steps, verify

FILES = (".h5", ".keras", ".npz")
"""Names of weights files end so."""


def restore_weights(
    source: Path, models: Mapping[str, tf.keras.Model], allow: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Restore the weights of the models, and nothing else.

    Where a run has kept averages of its weights, those are restored: they were evaluated.

    Args:
        source: a run directory, the path prefix of a checkpoint, or a `.keras`, `.h5` or `.npz`
            file. A file, or a checkpoint that another program has saved, has the weights of one
            model, the first.
        models: the models by name.
        allow: patterns of weights that may be missing, or of another shape, and then start fresh.

    Returns:
        What was restored, for the user, and what to know about it, one line each: why newer
        checkpoints were not used.

    Raises:
        CheckpointError: no checkpoint there verifies, or its models have other variables.
    """
    first = dict([next(iter(models.items()))])
    if source.suffix in FILES:
        return take_by_name(str(source), file_weights(source), first, allow), []
    if prefix := find_foreign(source):
        return _take_foreign(source, prefix, first, allow)
    directory, steps = _checkpoints(source)
    skipped = []
    for step in reversed(steps):
        if problem := verify(directory, step):
            skipped.append(f"skipped the checkpoint of step {step}: {problem}")
            continue
        prefix = str(directory / f"ckpt-{step}")
        if allow:
            saved = checkpoint_weights(prefix, models)
            return take_by_name(f"step {step} of {source}", saved, models, allow), skipped
        try:
            _restore_models(prefix, models)
        except CONNECTION_ERRORS:
            raise
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"init_from ({source}): the checkpoint of step {step} does not fit this model: "
                f"{describe_mismatch(error)} (init_allow=[<pattern>] lets weights start fresh)"
            ) from error
        return f"step {step} of {source}", skipped
    raise CheckpointError(f"init_from ({source}): there is no checkpoint that verifies")


def _take_foreign(
    source: Path, prefix: str, first: Mapping[str, tf.keras.Model], allow: Sequence[str]
) -> tuple[str, list[str]]:
    """Restore the weights of a model that another program has saved, as `restore_weights` does."""
    if allow:
        raise CheckpointError(
            f"init_allow ({', '.join(allow)}) needs a run, or a .keras, .h5 or .npz file, "
            f"in init_from; {source} is neither"
        )
    restore_foreign(prefix, next(iter(first.values())))
    return prefix, [f"{prefix} has no marker of a run, so its content could not be verified"]


def _checkpoints(source: Path) -> tuple[Path, list[int]]:
    """Return the folder of a run's checkpoints, and the steps of those that a path names."""
    if source.is_dir():
        directory = source / "checkpoints"
        return directory, committed_steps(directory)
    match = re.search(r"ckpt-(\d+)", source.name)
    return source.parent, [int(match[1])] if match else committed_steps(source.parent)


def _restore_models(prefix: str, models: Mapping[str, tf.keras.Model]) -> None:
    """Restore the models from a checkpoint, with averaged weights where it has them."""
    checkpoint = tf.train.Checkpoint(models=dict(models))
    checkpoint.read(prefix).assert_existing_objects_matched().expect_partial()
    names = [name for name, _ in tf.train.list_variables(prefix)]
    averaged = {name.split("/")[1] for name in names if name.startswith("averages/")}
    for name in averaged & set(models):
        averages = tf.train.Checkpoint(averages={name: whole(models[name].trainable_variables)})
        averages.read(prefix).assert_existing_objects_matched().expect_partial()
