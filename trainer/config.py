"""The typed schema of an experiment: every key, its default, its rule, and the checks across keys. No TensorFlow.

Groups whose choices name a `_target_` (model, dataset, task, optimizer, schedule, strategy, callbacks) are free mappings
here: their schema is the signature of the target, read by `trainer.targets`.
"""

# ruff: noqa: RUF009  (`key` is `dataclasses.field` with its metadata spelled out)
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from trainer import rules, targets
from trainer.errors import ConfigError

MODES = ("train", "evaluate", "export")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
WRITERS = ("tensorboard", "jsonl")

GROUPS = ("model", "dataset", "task", "optimizer", "schedule", "strategy", "checkpoint", "callbacks", "launch", "experiment")
PAIRS = (("train.steps", "train.epochs"), ("batch.global_size", "batch.per_replica"))

# What the engine passes to a target by position, and what it reads from the node itself.
_PASSED = {"model": ("input_shape", "num_classes"), "optimizer": ("learning_rate",), "schedule": ("peak", "total_steps")}
_ENGINE_KEYS = {
    "optimizer": {"learning_rate": "Annotated[float, '> 0']"},
    "schedule": {"reference_batch": "Annotated[int | None, '>= 1']"},
}
_TARGET_GROUPS = ("model", "dataset", "task", "optimizer", "schedule", "strategy")


def key(default: Any, help: str, rule: str | None = None) -> Any:
    """A schema field: default, one line of explanation, and a rule in the language of `trainer.rules`."""
    metadata = {"help": help, "rule": rule}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Train:
    """Length and form of training."""

    steps: int | None = key(None, "how many steps to train; exactly one of steps and epochs", ">= 1")
    epochs: int | None = key(30, "how many epochs to train", ">= 1")
    steps_per_epoch: int | None = key(None, "a shorter (or longer) reporting epoch; null: one pass over the data", ">= 1")
    steps_per_loop: int | str = key(
        "auto", "steps inside one graph call, never across an event; auto: about a second's worth", "auto or >= 1"
    )
    clip_norm: float | None = key(None, "clip the gradient of the global batch to this global norm", "> 0")
    ema_decay: float | None = key(None, "keep an exponential moving average of the weights, evaluate and export it", "> 0, < 1")


@dataclass
class Batch:
    """Batch sizes."""

    global_size: int | None = key(128, "examples in one update, over all replicas; exactly one of the two", ">= 1")
    per_replica: int | None = key(None, "examples in one update on each replica", ">= 1")
    accumulate: int = key(1, "micro-batches whose gradients are added up before one update", ">= 1")


@dataclass
class Evaluate:
    """When to evaluate."""

    every_steps: int | None = key(None, "evaluate every so many steps", ">= 1")
    every_epochs: int | None = key(1, "evaluate every so many epochs; the end is always evaluated", ">= 1")
    sidecar: bool = key(False, "evaluate in a process of its own beside the training, from its checkpoints")


@dataclass
class Best:
    """Best checkpoints, kept besides the newest."""

    metric: str | None = key(None, "also keep the best checkpoints by this metric of the test split, e.g. accuracy")
    mode: str = key("max", "whether larger (max) or smaller (min) is better", "max | min")
    keep: int = key(1, "how many of the best to keep", ">= 1")


@dataclass
class Checkpoint:
    """When to save and what to keep."""

    every_steps: int | None = key(None, "save every so many steps", ">= 1")
    every_secs: float | None = key(None, "save when so many seconds have gone by since the last save", "> 0")
    every_epochs: int | None = key(1, "save every so many epochs; the end is always saved", ">= 1")
    keep: int = key(2, "how many of the newest checkpoints to keep", ">= 1")
    best: Best = key(Best, "best checkpoints, kept besides the newest")


@dataclass
class Summary:
    """Metrics while it runs."""

    every_steps: int = key(50, "write training metrics every so many steps", ">= 1")
    writers: list[str] = key(list(WRITERS), "where metrics go: any of tensorboard, jsonl", "each: tensorboard | jsonl")


@dataclass
class Restart:
    """What the supervisor may do."""

    max_restarts: int = key(3, "how often the supervisor may start a failed attempt again", ">= 0")
    backoff_secs: float = key(1.0, "pause before the first restart; doubles each time", ">= 0")


@dataclass
class Launch:
    """How workers are started."""

    inline: bool = key(False, "train in this very process (for a debugger) instead of in supervised workers")


@dataclass
class Experiment:
    """The whole configuration of a run."""

    name: str | None = key(None, "first part of the run directory's name; null: <model>-<dataset>")
    runs_dir: str = key("runs", "where run directories are made")
    seed: int = key(0, "the only source of randomness", ">= 0, <= 9007199254740991")
    mode: str = key("train", "what to do: train, or evaluate or export a run (with resume=)", " | ".join(MODES))
    precision: str = key("float32", "float32, mixed_bfloat16 or mixed_float16", " | ".join(PRECISIONS))
    jit: bool = key(False, "compile forward and backward pass with XLA")
    deterministic: bool = key(False, "deterministic kernels; a GPU needs it to repeat bit for bit, a CPU does not")
    resume: str = key("auto", "auto: continue this run if it exists; never: start afresh; or a run directory")
    init_from: str | None = key(None, "take the weights, and nothing else, from this run or checkpoint", "checkpoint")
    train: Train = key(Train, "length and form of training")
    batch: Batch = key(Batch, "batch sizes")
    evaluate: Evaluate = key(Evaluate, "when to evaluate")
    checkpoint: Checkpoint = key(Checkpoint, "when to save and what to keep")
    summary: Summary = key(Summary, "metrics while it runs")
    restart: Restart = key(Restart, "what the supervisor may do")
    launch: Launch = key(Launch, "how workers are started")
    model: Any = key(None, "what is trained")
    dataset: Any = key(None, "what it is trained on")
    task: Any = key(None, "step and metrics")
    optimizer: Any = key(None, "how weights are updated")
    schedule: Any = key(None, "learning rate over time")
    strategy: Any = key(None, "which hardware, and how it works together")
    callbacks: Any = key(None, "what is told of the run's events")
    choices: Any = key(None, "which choice was made in each group; filled in")


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
    if container.get("choices") is not None:
        problems.append("choices is filled in by the program; remove it")
    experiment = restore({name: value for name, value in container.items() if name != "choices"})
    experiment.callbacks = experiment.callbacks or {}
    experiment.choices = {group: _plain_choice(choices.get(group)) for group in GROUPS}
    problems += check(experiment)
    if problems:
        raise ConfigError(*problems)
    return experiment


def restore(container: Mapping[str, Any]) -> Experiment:
    """Makes an experiment of the plain containers that `plain` gave; keys that the schema lacks are left out."""
    known = _known(container, Experiment)
    free = {name: known.pop(name) for name, kind in _fields(Experiment).items() if kind is Any and name in known}
    experiment = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Experiment), known))
    assert isinstance(experiment, Experiment)
    for name, value in free.items():
        setattr(experiment, name, value)
    return experiment


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
        *_check_sidecar(experiment),
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
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        problems.append(f"name ({name}) must be usable in a directory's name; use letters, digits, '.', '_' and '-', at most 100")
    if resumes and (line := run_problem(experiment.resume)):
        problems.append(line)
    if not resumes and experiment.mode in MODES and experiment.mode != "train":
        problems.append(f"mode ({experiment.mode}) needs a run; add resume=<run directory>")
    if not resumes and (line := _check_runs_dir(experiment.runs_dir)):
        problems.append(line)
    return problems


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
    best, writers = experiment.checkpoint.best, experiment.summary.writers
    if best.metric is not None and not re.fullmatch(r"[\w./-]+", best.metric):
        problems.append(f"checkpoint.best.metric ({best.metric}) must be the name of a metric, e.g. accuracy")
    if best.metric == "loss" and best.mode == "max":
        problems.append("checkpoint.best.mode (max) would keep the largest loss; add checkpoint.best.mode=min")
    if len(set(writers)) != len(writers):
        problems.append(f"summary.writers ({writers}) must name each writer once")
    return problems


def _check_sidecar(experiment: Experiment) -> list[str]:
    # The other modes take over a run's overrides, and evaluate or export just the same.
    if not experiment.evaluate.sidecar or experiment.mode != "train":
        return []
    problems, metric = [], experiment.checkpoint.best.metric
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


def _check_targets(experiment: Experiment) -> list[str]:
    problems = []
    for group in _TARGET_GROUPS:
        node = getattr(experiment, group)
        problems += targets.check(node, group, _PASSED.get(group, ()), _ENGINE_KEYS.get(group))
    callbacks = experiment.callbacks or {}
    if not isinstance(callbacks, Mapping):
        return [*problems, f"callbacks ({callbacks}) must be a mapping from names to callbacks; choose one with callbacks=<choice>"]
    return problems + [line for name, node in callbacks.items() for line in targets.check(node, f"callbacks.{name}")]


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
