"""What a dataset learns from its training split, kept in the run directory."""

from __future__ import annotations

from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.files import read_json, read_text, write_json
from trainer.protocols import Fitted
from trainer.runs.directory import fitted_file
from trainer.worker.context import WorkerContext


def prepare(dataset: Fitted, context: WorkerContext | None, group: ProcessGroup | None) -> str:
    """Fit a dataset, or restore what the run has kept; return that; collective with a group.

    The run keeps what the chief's data say. Other data never change it.

    Args:
        dataset: the dataset.
        context: this process; None: there is no run directory.
        group: the processes that run every step together; None: this one is alone.

    Raises:
        ConfigError: the data are wrong, or the run has lost what was kept.
        StorageError: it cannot be kept.
    """
    try:
        fitted = _prepare(dataset, context, group)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"dataset: {error}") from error
    if context is not None:
        for line in dataset.describe():
            context.channel.line(line)
    return fitted


def _prepare(dataset: Fitted, context: WorkerContext | None, group: ProcessGroup | None) -> str:
    if context is None:
        return dataset.fit()
    file = fitted_file(context.run_dir)
    is_kept = file.exists()
    if is_kept:
        text = read_text(file)
        # A run of an earlier version holds the text alone.
        fitted = read_json(file)["fitted"] if '"fitted"' in text else text
        dataset.restore(fitted)
    elif context.experiment.trains:
        # In every process, although one fit is used: wrong data are then an error in all of them.
        fitted = dataset.fit()
    else:
        raise ConfigError(
            f"{file} is missing: what the dataset learned when the run was trained; "
            "restore it from a copy, or train again"
        )
    chiefs = group.broadcast_text_from_chief(fitted) if group else fitted
    if chiefs != fitted:
        dataset.restore(chiefs)
    if not is_kept and context.cluster.is_chief:
        write_json(file, {"fitted": chiefs})
    return chiefs
