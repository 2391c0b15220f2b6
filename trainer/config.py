"""From what Hydra composed to a checked experiment, and the checks across keys. No TensorFlow."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer import rules, targets
from trainer.errors import ConfigError
from trainer.schema import GROUPS, MODES, PAIRS, TRACKERS, Experiment, Fault

# What the engine passes to a target by position.
_PASSED = {"model": ("input_shape", "num_classes"), "optimizer": ("learning_rate",), "schedule": ("peak", "total_steps")}
ENGINE_KEYS = {
    "optimizer": {"learning_rate": "Annotated[float, '> 0']"},
    "schedule": {"reference_batch": "Annotated[int | None, '>= 1']"},
}
"""What the engine reads from a target's node itself: group -> key -> annotation, as source."""
# What a fault of some kind cannot be otherwise.
_ONLY: dict[str, dict[str, Any]] = {
    "crash": {"delay_secs": 0.0},
    "corrupt": {"who": "chief", "delay_secs": 0.0},
    "full_disk": {"who": "chief", "when": "save", "delay_secs": 0.0},
    "nan": {"when": "step", "delay_secs": 0.0},
}
_TARGET_GROUPS = ("model", "dataset", "task", "optimizer", "schedule", "strategy")


def load(cfg: DictConfig, choices: Mapping[str, Any]) -> Experiment:
    """Turns a composed configuration into a checked experiment of plain containers.

    Args:
        cfg: what Hydra composed.
        choices: which choice was made in each group, as Hydra tells it; other groups than ours are left out.

    Raises:
        ConfigError: with all problems that were found.
    """
    container: Any = OmegaConf.to_container(cfg, resolve=True)
    problems = _unknown(container, Experiment, "", _known(container, Experiment))
    problems += [f"{name} has no value; add {name}=<value>" for name in sorted(OmegaConf.missing_keys(cfg))]
    problems += _untyped_faults(container)
    if container.get("choices") is not None:
        problems.append("choices is filled in by the program; remove it")
    experiment = restore({name: value for name, value in container.items() if name != "choices"})
    experiment.callbacks, experiment.metrics = experiment.callbacks or {}, experiment.metrics or {}
    experiment.choices = {group: _plain_choice(choices.get(group)) for group in GROUPS}
    problems += check(experiment)
    if problems:
        raise ConfigError(*problems)
    return experiment


def restore(container: Mapping[str, Any]) -> Experiment:
    """Makes an experiment of the plain containers that `plain` gave; keys that the schema lacks are left out."""
    known = _known(container, Experiment)
    free = {name: known.pop(name) for name, kind in _fields(Experiment).items() if kind is Any and name in known}
    experiment = OmegaConf.to_object(OmegaConf.merge(_schema(), known))
    assert isinstance(experiment, Experiment)
    for name, value in free.items():
        setattr(experiment, name, value)
    faults = experiment.fault if isinstance(experiment.fault, Mapping) else {}
    experiment.fault = {name: fault for name, node in faults.items() if (fault := _fault(node))}
    return experiment


@functools.cache
def _schema() -> DictConfig:
    """Gives what nobody may change: making it takes longer than merging into it."""
    schema = OmegaConf.structured(Experiment)
    assert isinstance(schema, DictConfig)
    return schema


def plain(experiment: Experiment) -> dict[str, Any]:
    """Gives an experiment as plain containers, for YAML or JSON."""
    return asdict(experiment)


def run_problem(resume: str) -> str | None:
    """Says why `resume` is not a run directory, or None if it is one."""
    if (Path(resume).expanduser() / "config.yaml").is_file():
        return None
    return f"resume ({resume}): no run there: it has no config.yaml; give the path of a run directory, or auto, or never"


def check(experiment: Experiment) -> list[str]:
    """Checks every key against its rule, the rules across keys, and the options of targets; returns the problems."""
    return [
        *_check_values(experiment, ""),
        *(line for first, second in PAIRS if (line := _exactly_one(experiment, first, second))),
        *_check_run(experiment),
        *_check_saving(experiment),
        *_check_writers(experiment),
        *_check_sidecar(experiment),
        *_check_faults(experiment),
        *_check_divergence(experiment),
        *_check_targets(experiment),
    ]


def _check_values(node: Any, path: str) -> list[str]:
    problems = []
    for item in fields(node):
        value, name = getattr(node, item.name), f"{path}{item.name}"
        if is_dataclass(value):
            problems += _check_values(value, f"{name}.")
        elif item.metadata["rule"] and (line := rules.problem(name, value, item.metadata["rule"])):
            problems.append(line)
    return problems


def _exactly_one(experiment: Experiment, first: str, second: str) -> str | None:
    a, b = _value_at(experiment, first), _value_at(experiment, second)
    if a is not None and b is not None:
        return f"{first} ({a}) and {second} ({b}) are both set, exactly one must be; add {second}=null"
    if a is None and b is None:
        return f"neither {first} nor {second} is set, exactly one must be; add {first}=<number>"
    return None


def _check_run(experiment: Experiment) -> list[str]:
    problems = []
    name, resumes = experiment.name, experiment.resume not in ("auto", "never")
    for key, value in (("name", name), ("sweep.name", experiment.sweep.name)):
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            problems.append(f"{key} ({value}) must be usable in a directory's name; use letters, digits, '.', '_' and '-', at most 100")
    if resumes and (line := run_problem(experiment.resume)):
        problems.append(line)
    problems += _check_allowed(experiment, resumes=resumes)
    if experiment.resume == "never" and experiment.mode in MODES and experiment.mode not in ("train", "verify"):
        problems.append(f"mode ({experiment.mode}) needs a run; add resume=<run directory>")
    if experiment.mode == "verify" and experiment.fault:
        problems.append(f"mode (verify) brings its own faults; remove {', '.join(f'fault.{name}' for name in experiment.fault)}")
    if not resumes and (line := _check_runs_dir(experiment.runs_dir)):
        problems.append(line)
    return problems


def _check_allowed(experiment: Experiment, *, resumes: bool) -> list[str]:
    names, leaves = experiment.resume_allow, plain(experiment)
    if names and not resumes:
        return [f"resume_allow ({names}) needs a run; add resume=<run directory>"]
    return [f"resume_allow: {line}" for name in names if (line := unknown_name(name, leaves))]


def unknown_name(name: str, root: Mapping[str, Any]) -> str | None:
    """Says that a dotted key does not exist, or gives None if it does."""
    node: Any = root
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return rules.unknown_key(name, node if isinstance(node, Mapping) else (), root)
        node = node[part]
    return None


def _check_runs_dir(runs_dir: str) -> str | None:
    path = Path(runs_dir).expanduser()
    existing = next(place for place in (path, *path.absolute().parents) if place.exists() or place.is_symlink())
    if not existing.is_dir():
        return f"runs_dir ({runs_dir}) must be a directory, but {existing} is a file; choose another with runs_dir=<directory>"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"runs_dir ({runs_dir}) must be writable, but {existing} is not; choose another with runs_dir=<directory>"
    return None


def _check_saving(experiment: Experiment) -> list[str]:
    problems = []
    best = experiment.checkpoint.best
    if best.metric is not None and not re.fullmatch(r"[\w./-]+", best.metric):
        problems.append(f"checkpoint.best.metric ({best.metric}) must be the name of a metric, e.g. accuracy")
    if best.metric is not None and (best.metric == "loss" or best.metric.endswith("_error")) and best.mode == "max":
        problems.append(f"checkpoint.best.mode (max) would keep the largest {best.metric}; add checkpoint.best.mode=min")
    if experiment.mode in ("train", "verify") and experiment.checkpoint.use != "latest":
        problems.append(
            f"checkpoint.use ({experiment.checkpoint.use}) is for mode=evaluate, export and predict; a training goes on from the newest, "
            "or starts with a checkpoint's weights: init_from=<run>/checkpoints/ckpt-<step>"
        )
    return problems


def _check_writers(experiment: Experiment) -> list[str]:
    writers = experiment.summary.writers
    problems = [f"summary.writers ({writers}) must name each writer once"] if len(set(writers)) != len(writers) else []
    return problems + [
        f'summary.writers names {name}, which is not installed; pip install "steadfast[{name}]"'
        for name in TRACKERS
        if name in writers and experiment.mode == "train" and not _installed(name)
    ]


def _installed(package: str) -> bool:
    # One without a file is a folder that happens to have the name, as W&B's own has.
    found = find_spec(package)
    return found is not None and found.origin is not None


def _check_sidecar(experiment: Experiment) -> list[str]:
    # The other modes take over a run's overrides, and evaluate or export just the same.
    if not experiment.evaluate.sidecar or experiment.mode != "train":
        return []
    problems, metric = [], experiment.checkpoint.best.metric
    if trackers := [name for name in TRACKERS if name in experiment.summary.writers]:
        problems.append(
            f"evaluate.sidecar (true) leaves summary.writers ({', '.join(trackers)}) without evaluations, for they take a run from one "
            "process; remove them or add evaluate.sidecar=false"
        )
    if isinstance(experiment.callbacks, Mapping) and experiment.callbacks:
        names = ", ".join(experiment.callbacks)
        problems.append(
            f"evaluate.sidecar (true) leaves callbacks ({names}) without evaluations; remove them or add evaluate.sidecar=false"
        )
    if metric is not None:
        problems.append(
            f"evaluate.sidecar (true) leaves checkpoints without checkpoint.best.metric ({metric}) when they are saved; "
            "add checkpoint.best.metric=null or evaluate.sidecar=false"
        )
    if experiment.launch.inline:
        problems.append("evaluate.sidecar (true) needs a process of its own, launch.inline (true) allows none; add evaluate.sidecar=false")
    return problems


def _check_faults(experiment: Experiment) -> list[str]:
    problems = []
    for name, fault in experiment.fault.items():
        path, only = f"fault.{name}", _ONLY.get(fault.what, {})
        problems += _check_values(fault, f"{path}.")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", str(name)):
            problems.append(f"{path} must be usable as a file's name; use letters, digits, '.', '_' and '-', at most 100")
        for key, value in only.items():
            if getattr(fault, key) != value:
                given, needed = rules.shown(getattr(fault, key)), rules.shown(value)
                problems.append(f"{path}.{key} ({given}) must be {needed} where {path}.what is {fault.what}")
        if fault.what == "slow" and not fault.delay_secs:
            problems.append(f"{path}.delay_secs ({fault.delay_secs}) must be > 0 where {path}.what is slow")
    return problems


def _untyped_faults(container: Mapping[str, Any]) -> list[str]:
    """Checks keys and types of faults, which are a free mapping to Hydra: it could not add one to a typed one."""
    faults = container.get("fault") or {}
    if not isinstance(faults, Mapping):
        return [f"fault ({faults}) must be a mapping from names to faults; choose one with fault=<choice>"]
    problems = []
    for name, node in faults.items():
        if not isinstance(node, Mapping):
            example = "{what:kill,who:chief,when:step,at:75}"
            problems.append(f"fault.{name} ({rules.shown(node)}) must be a mapping; write +fault.{name}={example}")
            continue
        hints = _fields(Fault)
        for key, value in node.items():
            if key not in hints:
                problems.append(rules.unknown_key(f"fault.{name}.{key}", hints, {}))
            elif _fault({key: value}) is None:
                kind = {int: "an int", float: "a float"}.get(hints[key], "a str")
                problems.append(f"fault.{name}.{key} ({rules.shown(value)}) must be {kind}")
    return problems


def _fault(node: Any) -> Fault | None:
    """Makes a fault of its plain container; None if that is none, which is told by `load`."""
    try:
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Fault), node))
    except (OmegaConfBaseException, ValueError, TypeError):
        return None
    return made if isinstance(made, Fault) else None


def _check_divergence(experiment: Experiment) -> list[str]:
    problems, divergence = [], experiment.divergence
    if divergence.leave_out > 1 and divergence.action != "rollback":
        problems.append(
            f"divergence.leave_out ({divergence.leave_out}) needs divergence.action=rollback, it is {divergence.action}; "
            "add divergence.action=rollback"
        )
    if divergence.leave_out > divergence.max_skips:
        problems.append(
            f"divergence.leave_out ({divergence.leave_out}) must be <= divergence.max_skips ({divergence.max_skips}); "
            f"add divergence.max_skips={divergence.leave_out}"
        )
    if divergence.leave_out > 1 and experiment.evaluate.sidecar and experiment.mode == "train":
        problems.append(
            f"divergence.leave_out ({divergence.leave_out}) removes checkpoints that evaluate.sidecar (true) may have evaluated; "
            "add divergence.leave_out=1 or evaluate.sidecar=false"
        )
    return problems


def _check_targets(experiment: Experiment) -> list[str]:
    problems = []
    for group in _TARGET_GROUPS:
        node = getattr(experiment, group)
        problems += targets.check(node, group, _PASSED.get(group, ()), ENGINE_KEYS.get(group))
    for section in ("callbacks", "metrics"):
        nodes = getattr(experiment, section)
        if not isinstance(nodes, Mapping):
            problems.append(f"{section} ({nodes}) must be a mapping from names to {section}; choose one with {section}=<choice>")
            continue
        problems += [line for name, node in nodes.items() for line in targets.check(node, f"{section}.{name}")]
    return problems


def _unknown(node: Mapping[str, Any], schema: type, path: str, root: Mapping[str, Any]) -> list[str]:
    """Finds keys that the schema lacks: `+key=` and `++key=` get past Hydra's own check."""
    problems = []
    known = _fields(schema)
    for name, value in node.items():
        if name not in known:
            problems.append(rules.unknown_key(f"{path}{name}", known, root))
        elif is_dataclass(known[name]) and isinstance(value, Mapping):
            problems += _unknown(value, known[name], f"{path}{name}.", root)
    return problems


def _known(node: Mapping[str, Any], schema: type) -> dict[str, Any]:
    """Leaves out what the schema lacks, and what has no value yet; both are told by `load`."""
    known = _fields(schema)
    return {
        name: _known(value, known[name]) if is_dataclass(known[name]) and isinstance(value, Mapping) else value
        for name, value in node.items()
        if name in known and value != "???"
    }


def _fields(schema: type) -> dict[str, Any]:
    hints = get_type_hints(schema)
    return {item.name: hints[item.name] for item in fields(schema)}


def _value_at(experiment: Experiment, name: str) -> Any:
    section, key_name = name.split(".")
    return getattr(getattr(experiment, section), key_name)


def _plain_choice(choice: Any) -> Any:
    return OmegaConf.to_container(choice) if OmegaConf.is_config(choice) else choice
