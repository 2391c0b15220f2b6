"""What selects by a metric, and which direction of it is better. No TensorFlow.

Tasks and metrics declare directions as the attribute `direction` of their classes. The worker reads
the objects; the parent, which imports none of them, reads the same attribute from their source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.config.options import signatures, targets
from trainer.config.options.constraints import format_plain
from trainer.config.schema import Experiment, Sweep
from trainer.protocols import MetricDefaults, TaskDefaults, with_defaults
from trainer.text import did_you_mean

# Ends of the names that Keras has for metrics.
_KERAS_MIN = (
    "error", "crossentropy", "hinge", "kldivergence", "poisson", "falsenegatives",
    "falsepositives",
)  # fmt: skip
_KERAS_SHORT_MIN = ("mae", "mse", "mape", "msle", "ce", "kld")
_KERAS_MAX = (
    "accuracy", "acc", "auc", "precision", "recall", "score", "iou", "similarity", "specificity",
    "sensitivity", "correlation", "truenegatives", "truepositives",
)  # fmt: skip


@dataclass(frozen=True)
class Directions:
    """Which direction of each metric is better.

    Attributes:
        by_metric: `max` or `min` by the name of a metric; that of `recall` counts for
            `recall/cat` too.
        primary: the metric by which runs are compared unless another is named.
        is_complete: whether nothing but these is declared; False if some source cannot be read.
    """

    by_metric: Mapping[str, str] = field(default_factory=lambda: {"loss": "min"})
    primary: str = "loss"
    is_complete: bool = True

    def mode(self, metric: str, configured: str = "auto") -> str | None:
        """Return `max` or `min`: as configured, or as declared; None: that is declared nowhere."""
        if configured != "auto":
            return configured
        return self.by_metric.get(metric, self.by_metric.get(metric.partition("/")[0]))

    def problem(self, key: str, metric: str, fix: str, configured: str) -> str | None:
        """Return why a metric cannot select, if its direction is unknown.

        Args:
            fix: what sets its direction to `max`.
        """
        if self.mode(metric, configured):
            return None
        return (
            f"{key} ({metric}) declares no direction, unlike {', '.join(self.by_metric)}; add "
            f'{fix} (or min), or direction = {{"{metric}": "max"}} to the class that '
            f"returns it{did_you_mean(metric, list(self.by_metric))}"
        )


def rank(value: float, mode: str | None) -> float:
    """Return the place of a value in an order: the best first, NaN last."""
    return math.inf if math.isnan(value) else value if mode == "min" else -value


def of_objects(task: Any, metrics: Mapping[str, Any]) -> Directions:
    """Return what a built task and the configured metrics declare."""
    own = with_defaults(task, TaskDefaults)
    by_metric = [
        _by_name(_of_object(metric), name, *with_defaults(metric, MetricDefaults).names)
        for name, metric in metrics.items()
    ]
    return _join(own.direction, own.primary_metric, by_metric)


def declared(experiment: Experiment) -> Directions:
    """Return what the source of the configured task and metrics declares."""
    nodes = experiment.metrics if isinstance(experiment.metrics, Mapping) else {}
    # A node without a target is a separate problem.
    chosen = {name: target for name, node in nodes.items() if (target := _target(node))}
    return of_targets(_target(experiment.task), chosen)


def of_targets(task: str | None, metrics: Mapping[str, str]) -> Directions:
    """Return what the source of targets declares.

    Args:
        task: the dotted path of the task; None: a loop of the user's own trains.
    """
    own = None if task is None else signatures.constant(task, "direction")
    primary = None if task is None else signatures.constant(task, "primary_metric")
    of_keras = {name: _of_keras(target) for name, target in metrics.items()}
    declared = {
        name: of_keras[name] or signatures.constant(target, "direction")
        for name, target in metrics.items()
    }
    is_unknown = ... in (own, *declared.values()) or any(
        # It is that of all values, whose names the object has.
        isinstance(direction, str) and not of_keras[name]
        for name, direction in declared.items()
    )
    by_metric = [_by_name(direction, name) for name, direction in declared.items()]
    return replace(_join(own, primary, by_metric), is_complete=not is_unknown)


def resolved(sweep: Sweep, experiment: Experiment) -> tuple[Sweep, str | None]:
    """Return a sweep with its metrics and modes, and why nothing can be selected by them, if so.

    Both are lists if there are several metrics.
    """
    directions = declared(experiment)
    sweep = replace(sweep, metric=sweep.metric or directions.primary)
    problems = (directions.problem(*selection) for selection in _sweep_selections(sweep))
    problem = next(filter(None, problems), None)
    metrics, modes = metrics_and_modes(sweep)
    pairs = zip(metrics, modes, strict=True)
    modes = [directions.mode(metric, mode) or mode for metric, mode in pairs]
    if len(metrics) == 1:
        return replace(sweep, metric=metrics[0], mode=modes[0]), problem
    return replace(sweep, metric=metrics, mode=modes), problem


def metrics_and_modes(sweep: Sweep) -> tuple[list[str], list[str]]:
    """Return the metrics of a sweep, `loss` if none is set, and their modes as configured."""
    metrics = [sweep.metric] if isinstance(sweep.metric, str) else sweep.metric or ["loss"]
    modes = [sweep.mode] * len(metrics) if isinstance(sweep.mode, str) else sweep.mode
    return metrics, modes


def list_problem(sweep: Sweep) -> str | None:
    """Return what is wrong with the lists of metrics and modes of a sweep, if anything."""
    metrics, modes = metrics_and_modes(sweep)
    if sweep.metric == []:
        return "sweep.metric ([]) names no metric; write sweep.metric=null for the primary one"
    if twice := [metric for metric in dict.fromkeys(metrics) if metrics.count(metric) > 1]:
        return f"sweep.metric ({format_plain(metrics)}) has {twice[0]} twice; name it once"
    if len(metrics) != len(modes):
        return (
            f"sweep.mode ({format_plain(modes)}) must have one mode for each metric of "
            f"sweep.metric ({format_plain(sweep.metric)}), or be one mode for all, e.g. "
            "sweep.mode=auto"
        )
    return None


def _by_name(direction: Any, *names: str) -> Any:
    """Return a declaration by the names of metrics: one for all of them, or one for each."""
    return dict.fromkeys(names, direction) if isinstance(direction, str) else direction


def _join(own: Any, primary: Any, by_metric: Iterable[Any]) -> Directions:
    directions = {"loss": "min"}
    for declaration in (own, *by_metric):
        directions |= declaration if isinstance(declaration, Mapping) else {}
    return Directions(directions, primary if str(primary) in directions else "loss")


def _target(node: Any) -> str | None:
    target = node.get("_target_") if isinstance(node, Mapping) else None
    return target if isinstance(target, str) else None


def _of_object(metric: Any) -> Any:
    target = f"{type(metric).__module__}.{type(metric).__name__}"
    return with_defaults(metric, MetricDefaults).direction or _of_keras(target)


def of_keras_name(name: str) -> str | None:
    """Return the better direction of a metric of Keras (`AUC`, `mae`, ...); or None."""
    word = name.lower().replace("_", "")
    if word in _KERAS_SHORT_MIN or word.endswith(_KERAS_MIN):
        return "min"
    return "max" if word.endswith(_KERAS_MAX) else None


def _of_keras(target: str) -> str | None:
    """Return the direction of a metric of Keras, which declares none, by the name of its class."""
    package, _, name = target.partition(".")
    return of_keras_name(name) if package in ("tensorflow", "tf_keras", "keras") else None


def selections(experiment: Experiment) -> Iterator[tuple[str, str, str, str]]:
    """Yield each key that selects by a metric, the metric, what sets its mode, and its mode."""
    best = experiment.checkpoint.best
    if best.metric is not None:
        yield "checkpoint.best.metric", best.metric, "checkpoint.best.mode=max", best.mode
    if experiment.sweep.metric is not None:
        yield from _sweep_selections(experiment.sweep)
    nodes = experiment.callbacks if isinstance(experiment.callbacks, Mapping) else {}
    for name, node in nodes.items():
        # A user's own callback may use `metric` for something else.
        is_own = isinstance(node, Mapping) and str(node.get("_target_")).startswith("trainer.")
        if is_own and isinstance(metric := node.get("metric"), str):
            key = f"callbacks.{name}"
            yield f"{key}.metric", metric, f"{key}.mode=max", str(node.get("mode", "auto"))


def _sweep_selections(sweep: Sweep) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each metric of a sweep what `selections` does."""
    metrics, modes = metrics_and_modes(sweep)
    for index, (metric, mode) in enumerate(zip(metrics, modes, strict=True)):
        fixed = [*modes[:index], "max", *modes[index + 1 :]]
        fix = format_plain(fixed if len(metrics) > 1 else "max")
        yield "sweep.metric", metric, f"sweep.mode={fix}", mode


def selecting_split(experiment: Experiment) -> str:
    """Return the split by which is selected: `validation`, or `test` without one."""
    node = experiment.dataset if isinstance(experiment.dataset, Mapping) else {}
    own = node.get("validation_data")
    has_own = isinstance(own, Mapping) and own.get("_target_") is not None
    return "validation" if has_own or node.get("validation") is not None else "test"


def biased_selection(experiment: Experiment, *others: str) -> list[str]:
    """Return a line if something selects by test data, whose results then look too good."""
    if not experiment.trains or experiment.dataset is None:
        return []
    best = ["checkpoint.best"] if experiment.checkpoint.best.metric is not None else []
    callbacks = [
        f"callbacks.{name}"
        for name, node in (experiment.callbacks or {}).items()
        if isinstance(node, Mapping)
        and "metric" in {**targets.defaults(node.get("_target_")), **node}
    ]
    names = [*others, *best, *callbacks]
    # What a script gives to `fit` as validation is called test here.
    is_of_fit = "held_out" in (experiment.dataset or {})
    if not names or is_of_fit or selecting_split(experiment) == "validation":
        return []
    return [
        f"{', '.join(names)} pick{'s' if len(names) == 1 else ''} the best result on test data, "
        "which is optimistic; set dataset.validation=0.1 to pick on a validation split"
    ]
