"""The rules of a configuration: of each key, across keys, and of the options of targets.

Every function of a section yields the problems it finds, one line each. No TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.config import addresses
from trainer.config import (
    directions as directions_of,
)
from trainer.config.options import constraints, targets
from trainer.config.options.constraints import format_value
from trainer.config.rules import augmentation, env, finetuning, loop, run_folder
from trainer.config.schema import MODES, PAIRS, Experiment
from trainer.files import component

_EXTRAS = ("mlflow", "wandb")
"""Writers that need an optional package of the same name."""


TARGET_GROUPS = (
    "model", "dataset", "augment", "env", "buffer", "task", "optimizer", "schedule", "strategy",
    "search",
)  # fmt: skip
"""Groups with one choice, which is a `_target_` with its options."""


OPTIONAL_GROUPS = ("model", "optimizer")
"""Target groups that a task may do without: `trainer.config.loading` checks when."""

_FIXED_FAULT_KEYS: dict[str, dict[str, Any]] = {
    "crash": {"delay_secs": 0.0},
    "corrupt": {"process": "chief", "delay_secs": 0.0},
    "full_disk": {"process": "chief", "phase": "save", "delay_secs": 0.0},
    "nan": {"phase": "step", "delay_secs": 0.0},
}
"""Keys of a fault that have one possible value for an action."""

_NAME_RULE = "use letters, digits, '.', '_' and '-', at most 100"


def check(experiment: Experiment) -> list[str]:
    """Return all problems of an experiment, one line each."""
    if empty := list(_check_empty(experiment, "")):
        return empty  # other rules would say the same in other words
    return [
        *_check_values(experiment, ""),
        *_check_pairs(experiment),
        *_check_names(experiment),
        *_check_resume(experiment),
        *_check_mode(experiment),
        *run_folder.check(experiment),
        *_check_checkpoint(experiment),
        *_check_directions(experiment),
        *_check_validation(experiment),
        *_check_writers(experiment),
        *_check_sidecar(experiment),
        *_check_faults(experiment),
        *_check_divergence(experiment),
        *_check_targets(experiment),
        *finetuning.check(experiment),
        *augmentation.check(experiment),
    ]


def run_problem(resume: str) -> str | None:
    """Return why `resume` is not a run directory, or None if it is one.

    What is in an object store is read when the run is brought from there.
    """
    if addresses.is_remote(resume):
        return addresses.problem("resume", resume)
    if (Path(resume).expanduser() / "config.yaml").is_file():
        return None
    return (
        f"resume ({resume}): no run there: it has no config.yaml; "
        "give the path of a run directory, or auto, or never"
    )


def unknown_name(name: str, root: Mapping[str, Any]) -> str | None:
    """Return an error line if the dotted key `name` does not exist in `root`, else None."""
    node: Any = root
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return constraints.unknown_key(name, node if isinstance(node, Mapping) else (), root)
        node = node[part]
    return None


def _check_empty(node: Any, path: str) -> Iterator[str]:
    """Refuse empty texts: there is no key for which one is a value."""
    for item in fields(node):
        value = getattr(node, item.name)
        name = f"{path}{item.name}"
        if is_dataclass(value):
            yield from _check_empty(value, f"{name}.")
        elif name == "fault":
            for fault in value:
                yield from _check_empty(value[fault], f"fault.{fault}.")
        elif line := constraints.check_empty(name, value, nullable="None" in str(item.type)):
            yield line


def _check_values(node: Any, path: str) -> Iterator[str]:
    """Check each key against the rule in its schema."""
    for item in fields(node):
        value = getattr(node, item.name)
        name = f"{path}{item.name}"
        if is_dataclass(value):
            yield from _check_values(value, f"{name}.")
        elif item.metadata["rule"] and (
            line := constraints.check_value(name, value, item.metadata["rule"])
        ):
            yield line


def _check_pairs(experiment: Experiment) -> Iterator[str]:
    """Of each pair of keys exactly one must be set."""
    for first, second in PAIRS:
        first_value = _value_at(experiment, first)
        second_value = _value_at(experiment, second)
        if first_value is not None and second_value is not None:
            yield (
                f"{first} ({first_value}) and {second} ({second_value}) are both set, "
                f"exactly one must be; add {second}=null"
            )
        if first_value is None and second_value is None:
            yield (
                f"neither {first} nor {second} is set, exactly one must be; add {first}=<number>"
            )


def _check_names(experiment: Experiment) -> Iterator[str]:
    for key, name in (("name", experiment.name), ("sweep.name", experiment.sweep.name)):
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            yield f"{key} ({name}) must be usable in a directory's name; {_NAME_RULE}"
    for group in ("callbacks", "metrics", "writers"):
        nodes = getattr(experiment, group)
        for name in nodes if isinstance(nodes, Mapping) else ():
            try:
                component(name)
            except ValueError as error:
                yield f"{group}: {error}; files of the run are named after it"


def _check_resume(experiment: Experiment) -> Iterator[str]:
    names = experiment.resume_allow
    if _names_a_run(experiment):
        if line := run_problem(experiment.resume):
            yield line
        keys = asdict(experiment)
        for name in names:
            if line := unknown_name(name, keys):
                yield f"resume_allow: {line}"
    elif names:
        yield f"resume_allow ({names}) needs a run; add resume=<run directory>"


_TRAINING = ("train", "plan", "verify", "benchmark")
"""Modes that start runs of their own, and need none."""


def _check_mode(experiment: Experiment) -> Iterator[str]:
    mode = experiment.mode
    if experiment.resume == "never" and mode in MODES and mode not in _TRAINING:
        yield f"mode ({mode}) needs a run; add resume=<run directory>"
    if mode in ("verify", "benchmark") and experiment.fault:
        names = ", ".join(f"fault.{name}" for name in experiment.fault)
        yield f"mode ({mode}) is for runs without faults of their own; remove {names}"


def _check_checkpoint(experiment: Experiment) -> Iterator[str]:
    checkpoint = experiment.checkpoint
    metric = checkpoint.best.metric
    if metric is not None and not re.fullmatch(r"[\w./-]+", metric):
        yield f"checkpoint.best.metric ({metric}) must be the name of a metric, e.g. accuracy"
    if experiment.mode in _TRAINING and checkpoint.use != "latest":
        yield (
            f"checkpoint.use ({checkpoint.use}) is for mode=evaluate, export and predict; a "
            "training goes on from the newest, or starts with a checkpoint's weights: "
            "init_from=<run>/checkpoints/ckpt-<step>"
        )


def _check_directions(experiment: Experiment) -> Iterator[str]:
    """Refuse to select by a metric whose direction nothing declares, as far as sources tell."""
    if experiment.mode not in _TRAINING or loop.name_of(experiment) is not None:
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
    return "test" if node.get("validation") is None else "validation"


def biased_selection(experiment: Experiment, *others: str) -> list[str]:
    """Return a line if something selects by test data, whose figures are then too good.

    Args:
        experiment: the configuration.
        *others: what selects besides best checkpoints and callbacks.
    """
    if not experiment.trains or experiment.dataset is None:
        return []
    best = ["checkpoint.best"] if experiment.checkpoint.best.metric is not None else []
    names = [*others, *best, *(f"callbacks.{name}" for name in _selecting_callbacks(experiment))]
    if not names or selecting_split(experiment) == "validation":
        return []
    return [
        f"{', '.join(names)} select{'s' if len(names) == 1 else ''} by test data, whose figures "
        "are then too good; dataset.validation=0.1 selects by a tenth of the training data"
    ]


def _selecting_callbacks(experiment: Experiment) -> Iterator[str]:
    for name, node in (experiment.callbacks or {}).items():
        if isinstance(node, Mapping) and "metric" in {
            **targets.defaults(node.get("_target_")),
            **node,
        }:
            yield name


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
    for name in experiment.writers:
        if name in _EXTRAS and not _is_installed(name):
            yield f'writers names {name}, which is not installed; pip install "steadfast[{name}]"'


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


def _check_faults(experiment: Experiment) -> Iterator[str]:
    for name, fault in experiment.fault.items():
        path = f"fault.{name}"
        action = f"{path}.action is {fault.action}"
        yield from _check_values(fault, f"{path}.")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", str(name)):
            yield f"{path} must be usable as a file's name; {_NAME_RULE}"
        for key, fixed in _FIXED_FAULT_KEYS.get(fault.action, {}).items():
            if (value := getattr(fault, key)) != fixed:
                yield (
                    f"{path}.{key} ({format_value(value)}) must be {format_value(fixed)} "
                    f"where {action}"
                )
        if fault.action == "slow" and not fault.delay_secs:
            yield f"{path}.delay_secs ({fault.delay_secs}) must be > 0 where {action}"


def _check_divergence(experiment: Experiment) -> Iterator[str]:
    divergence = experiment.divergence
    steps = divergence.rollback_steps
    if steps > 1 and divergence.action != "rollback":
        yield (
            f"divergence.rollback_steps ({steps}) needs divergence.action=rollback, it is "
            f"{divergence.action}; add divergence.action=rollback"
        )
    if steps > divergence.max_skips:
        yield (
            f"divergence.rollback_steps ({steps}) must be <= divergence.max_skips "
            f"({divergence.max_skips}); add divergence.max_skips={steps}"
        )
    if steps > 1 and experiment.evaluate.sidecar and experiment.trains:
        yield (
            f"divergence.rollback_steps ({steps}) removes checkpoints that evaluate.sidecar (true) "
            "may have evaluated; add divergence.rollback_steps=1 or evaluate.sidecar=false"
        )


def _check_targets(experiment: Experiment) -> Iterator[str]:
    groups = TARGET_GROUPS if loop.name_of(experiment) is None else ("strategy", "search", "loop")
    for group in groups:
        node = getattr(experiment, group)
        if node is not None or group not in (*OPTIONAL_GROUPS, *env.absent(experiment)):
            yield from _check_target(node, group, group)
    for section in ("callbacks", "metrics", "writers"):
        nodes = getattr(experiment, section)
        if not isinstance(nodes, Mapping):
            yield (
                f"{section} ({nodes}) must be a mapping from names to {section}; "
                f"choose one with {section}=<choice>"
            )
            continue
        for name, node in nodes.items():
            yield from _check_target(node, f"{section}.{name}", section)


def _check_target(node: Any, path: str, group: str) -> list[str]:
    arguments = targets.ENGINE_ARGUMENTS.get(group, ())
    return targets.check(node, path, arguments, targets.ENGINE_KEYS.get(group))


def _names_a_run(experiment: Experiment) -> bool:
    return experiment.resume not in ("auto", "never")


def _is_installed(package: str) -> bool:
    # One without a file is a folder that happens to have the name, as W&B's own has.
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def _value_at(experiment: Experiment, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(experiment, section), name)
