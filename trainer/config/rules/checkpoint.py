"""Rules of `checkpoint`, and of whatever selects by a metric. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trainer.config import directions as directions_of
from trainer.config.options import targets
from trainer.config.rules import loop
from trainer.config.schema import Experiment


def check(experiment: Experiment) -> Iterator[str]:
    """Yield the problems of an experiment, one line each."""
    checkpoint = experiment.checkpoint
    for key, node in (
        ("checkpoint.save_policy", checkpoint.save_policy),
        ("checkpoint.retention_policy", checkpoint.retention_policy),
    ):
        if node is not None:
            yield from targets.check(node, key, key)
    metric = checkpoint.best.metric
    if metric is not None and not re.fullmatch(r"[\w./-]+", metric):
        yield f"checkpoint.best.metric ({metric}) must be the name of a metric, e.g. accuracy"
    if not experiment.needs_run and checkpoint.use != "latest":
        yield (
            f"checkpoint.use ({checkpoint.use}) is for mode=evaluate, export and predict; a "
            "training goes on from the newest, or starts with a checkpoint's weights: "
            "init_from=<run>/checkpoints/ckpt-<step>"
        )
    if checkpoint.memory == "never" and checkpoint.memory_every_steps is not None:
        yield (
            f"checkpoint.memory_every_steps ({checkpoint.memory_every_steps}) has no effect with "
            "checkpoint.memory=never; remove one of them"
        )
    yield from _check_directions(experiment)


def _check_directions(experiment: Experiment) -> Iterator[str]:
    """Refuse to select by a metric whose direction nothing declares, as far as sources tell."""
    if experiment.needs_run or loop.name_of(experiment) is not None:
        return
    directions: directions_of.Directions | None = None
    for key, metric, mode_key, mode in selections(experiment):
        directions = directions or directions_of.declared(experiment)
        if directions.is_complete and (line := directions.problem(key, metric, mode_key, mode)):
            yield line


def selections(experiment: Experiment) -> Iterator[tuple[str, str, str, str]]:
    """Yield each key that selects by a metric, the metric, and the key and value of its mode."""
    best = experiment.checkpoint.best
    if best.metric is not None:
        yield "checkpoint.best.metric", best.metric, "checkpoint.best.mode", best.mode
    sweep = experiment.sweep
    if sweep.metric is not None:
        yield "sweep.metric", sweep.metric, "sweep.mode", sweep.mode
    nodes = experiment.callbacks if isinstance(experiment.callbacks, Mapping) else {}
    for name, node in nodes.items():
        # A user's own callback may use `metric` for something else.
        is_own = isinstance(node, Mapping) and str(node.get("_target_")).startswith("trainer.")
        if is_own and isinstance(metric := node.get("metric"), str):
            key = f"callbacks.{name}"
            yield f"{key}.metric", metric, f"{key}.mode", str(node.get("mode", "auto"))


def selecting_split(experiment: Experiment) -> str:
    """Return the split by which is selected: `validation`, or `test` without one."""
    node = experiment.dataset if isinstance(experiment.dataset, Mapping) else {}
    own = node.get("validation_data")
    has_own = isinstance(own, Mapping) and own.get("_target_") is not None
    return "validation" if has_own or node.get("validation") is not None else "test"


def biased_selection(experiment: Experiment, *others: str) -> list[str]:
    """Return a line if something selects by test data, whose results then look too good.

    Args:
        *others: what selects besides best checkpoints and callbacks.
    """
    if not experiment.trains or experiment.dataset is None:
        return []
    best = ["checkpoint.best"] if experiment.checkpoint.best.metric is not None else []
    names = [*others, *best, *(f"callbacks.{name}" for name in _selecting_callbacks(experiment))]
    if not names or selecting_split(experiment) == "validation":
        return []
    return [
        f"{', '.join(names)} select{'s' if len(names) == 1 else ''} by test data, so the best "
        "result looks better than it is; dataset.validation=0.1 selects by a tenth of the "
        "training data"
    ]


def _selecting_callbacks(experiment: Experiment) -> Iterator[str]:
    for name, node in (experiment.callbacks or {}).items():
        if isinstance(node, Mapping) and "metric" in {
            **targets.defaults(node.get("_target_")),
            **node,
        }:
            yield name
