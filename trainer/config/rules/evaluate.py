"""Rules of `evaluate`, of the validation split, and of the writers. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainer.config.options import targets
from trainer.config.schema import Experiment


def check(experiment: Experiment) -> Iterator[str]:
    """Yield the problems of an experiment, one line each."""
    yield from _check_validation(experiment)
    yield from _check_writers(experiment)
    yield from _check_sidecar(experiment)


def _check_validation(experiment: Experiment) -> Iterator[str]:
    node = experiment.dataset if isinstance(experiment.dataset, Mapping) else {}
    value = node.get("validation")
    if isinstance(value, bool) or value == "":
        return  # refused already: every dataset declares the type of this key
    if isinstance(value, int | float) and not 0 < value < 1:
        yield f"dataset.validation ({value}) must be a fraction > 0 and < 1, or a path, or null"
    if isinstance(value, str) and targets.takes(str(node.get("_target_")), "test_path") is False:
        yield (
            f"dataset.validation ({value}) is a path, and {node['_target_']} reads no files to "
            "test on (test_path); give the fraction of the training split, e.g. 0.1"
        )


def _check_writers(experiment: Experiment) -> Iterator[str]:
    if not isinstance(experiment.writers, Mapping) or not experiment.trains:
        return
    for name, node in experiment.writers.items():
        target = node.get("_target_") if isinstance(node, Mapping) else None
        if missing := targets.missing_package(str(target)):
            yield f"writers.{name} ({target}) {missing}"


def trackers(experiment: Experiment) -> list[str]:
    """Return the names of the writers to services that the run can do without."""
    nodes = experiment.writers if isinstance(experiment.writers, Mapping) else {}
    return [
        name for name, node in nodes.items() if isinstance(node, Mapping) and node.get("tracker")
    ]


def _check_sidecar(experiment: Experiment) -> Iterator[str]:
    # The other modes take over a run's overrides, and evaluate or export just the same.
    if not experiment.evaluate.sidecar or not experiment.trains:
        return
    metric = experiment.checkpoint.best.metric
    without = "add evaluate.sidecar=false"
    if names := ", ".join(trackers(experiment)):
        yield (
            f"evaluate.sidecar (true) leaves writers ({names}) without evaluations, for they take "
            f"a run from one process; remove them or {without}"
        )
    if isinstance(experiment.callbacks, Mapping) and experiment.callbacks:
        yield (
            f"evaluate.sidecar (true) leaves callbacks ({', '.join(experiment.callbacks)}) without "
            f"evaluations; remove them or {without}"
        )
    if metric is not None:
        yield (
            "evaluate.sidecar (true) leaves checkpoints without checkpoint.best.metric "
            f"({metric}) when they are saved; add checkpoint.best.metric=null or "
            "evaluate.sidecar=false"
        )
    if experiment.launch.inline:
        yield (
            "evaluate.sidecar (true) needs a process of its own, launch.inline (true) allows none; "
            f"{without}"
        )
