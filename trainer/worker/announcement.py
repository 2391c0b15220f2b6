"""The first lines of a run: what is trained, on which data and devices, and for how long."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainer.cluster.messages import Channel
from trainer.config.directions import biased_selection
from trainer.config.schema import Experiment
from trainer.engine.graph.input.feed import epoch_lines
from trainer.protocols import DatasetDefaults, OptimizerDefaults, with_defaults
from trainer.runs.identity import run_address, trained_choice
from trainer.worker.run import Run

if TYPE_CHECKING:
    import tensorflow as tf


def announce(run: Run) -> None:
    """Send the first lines: `cnn (99,178 parameters) on digits, 1 CPU -> runs/...`."""
    channel, experiment, sizes = run.channel, run.experiment, run.sizes
    what = f"{_model(experiment)} ({parameters(run.task.models)})"
    _announce(run, what, sizes.num_replicas * run.strategy.devices_per_replica)
    total = run.plan.total_steps
    if experiment.trains:
        epochs = run.plan.epochs.completed(total)
        length = f", {_count(epochs, 'epoch')}" if epochs else ""
        channel.opening(f"batch {sizes}; {_count(total, 'step')}{length}")
    has_validation = with_defaults(run.dataset, DatasetDefaults).validation is not None
    notes = [] if has_validation else biased_selection(experiment)
    for line in [*notes, *epoch_lines(run.dataset.train, total * sizes.global_size)]:
        channel.line(line)


def announce_loop(run: Run) -> None:
    """Send the first lines of a loop of the user's own, which makes its models itself."""
    num_replicas = run.tf_strategy.num_replicas_in_sync
    _announce(run, str(run.experiment.own_loop), num_replicas)
    steps = run.experiment.train.steps or 0
    run.channel.opening(f"{_count(num_replicas, 'replica')}; {_count(steps, 'step')}")


def row_announcer(channel: Channel) -> Callable[[Any, tf.Variable], None]:
    """Return the function that sends a line for each table whose gradient is in rows, once.

    It is called with an optimizer and a variable when a step is traced.
    """
    announced: set[str] = set()

    def announce_rows(optimizer: Any, variable: tf.Variable) -> None:
        name = variable.name.partition(":")[0]
        if name in announced:
            return
        announced.add(name)
        own = with_defaults(optimizer, OptimizerDefaults).member_of(variable)
        view = with_defaults(own, OptimizerDefaults)
        rows, *columns = variable.shape
        line = f"{name} ({' x '.join([f'{rows:,}', *map(str, columns)])}): gradients by rows"
        if not view.updates_rows(variable):
            hint = " (optimizer.lazy=true: only those of the batch)" if view.can_be_lazy else ""
            line += f"; {own._name} moves every row at each step{hint}"
        channel.line(line)

    return announce_rows


def _announce(run: Run, what: str, num_devices: int) -> None:
    jobs, group, strategy = run.cluster.jobs, run.group, run.strategy
    # A chief's workers are no replicas of one another: each runs its own steps.
    num_workers = len(jobs["worker"]) if strategy.asynchronous else 1
    # TensorFlow's tutorial prints this line, and programs read it from the log.
    run.channel.log(f"Number of devices: {num_devices * num_workers}")
    if strategy.asynchronous:
        where = f"{_count(num_workers, 'worker')}, {_count(len(jobs['ps']), 'parameter server')}"
    else:
        kind = group.local_devices[0].rpartition("device:")[2].partition(":")[0] or "CPU"
        where = _count(num_devices // group.count, kind.upper())
        where = f"{group.count} processes x {where}" if group.count > 1 else where
    experiment = run.experiment
    if experiment.env is not None and experiment.trains:
        where += f", {_count(run.cluster.actors or experiment.actors.count, 'actor')}"
    path = run_address(experiment) or run.run_dir
    run.channel.opening(f"{what}{_data(experiment)}, {where} -> {path}")
    if strategy.communication:
        run.channel.opening(f"Communication: {strategy.communication}")


def _model(experiment: Experiment) -> str:
    """Return the choice of the model, or the path of a target that has another name."""
    choice = trained_choice(experiment)
    target = str((experiment.model or {}).get("_target_", choice))
    is_named = target.startswith("trainer.") or target.endswith(f".{choice}")
    return choice if is_named else target


def _data(experiment: Experiment) -> str:
    """Return ` on digits`; the data of a custom loop are unknown."""
    group = experiment.data_group
    if getattr(experiment, group) is None:
        return ""
    choice = (experiment.choices or {}).get(group) or getattr(experiment, group).get("_target_")
    return f" on {choice}"


def parameters(models: Mapping[str, Any]) -> str:
    """Return `99,178 parameters`, or of several models `generator 120 + critic 80 parameters`."""
    counts = {
        name: sum(math.prod(weight.shape) for weight in getattr(model, "weights", model.variables))
        for name, model in models.items()
    }
    if len(counts) == 1:
        (count,) = counts.values()
        return f"{count:,} parameters"
    return f"{' + '.join(f'{name} {count:,}' for name, count in counts.items())} parameters"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' if number != 1 else ''}"
