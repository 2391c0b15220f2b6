"""The typed schema of an experiment: every key, its default, its rule, and the checks across keys. No TensorFlow.

Groups whose choices name a `_target_` (model, dataset, task, optimizer, schedule, strategy, callbacks) are free mappings
here: their schema is the signature of the target, read by `trainer.targets`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from trainer.rules import broken

MODES = ("train", "evaluate", "export")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
WRITERS = ("tensorboard", "jsonl")


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
    steps: int | None = key(None, "how many steps to train; exactly one of steps and epochs", ">= 1")
    epochs: int | None = key(None, "how many epochs to train", ">= 1")
    steps_per_epoch: int | None = key(None, "a shorter (or longer) reporting epoch; null: one pass over the data", ">= 1")
    steps_per_loop: Any = key("auto", "steps inside one graph call, never across an event; auto: about a second's worth", "auto or >= 1")
    clip_norm: float | None = key(None, "clip the gradient of the global batch to this global norm", "> 0")
    ema_decay: float | None = key(None, "keep an exponential moving average of the weights, evaluate and export it", "> 0, < 1")


@dataclass
class Batch:
    global_size: int | None = key(128, "examples in one update, over all replicas; exactly one of the two", ">= 1")
    per_replica: int | None = key(None, "examples in one update on each replica", ">= 1")
    accumulate: int = key(1, "micro-batches whose gradients are added up before one update", ">= 1")


@dataclass
class Evaluate:
    every_steps: int | None = key(None, "evaluate every so many steps", ">= 1")
    every_epochs: int | None = key(1, "evaluate every so many epochs; the end is always evaluated", ">= 1")


@dataclass
class Best:
    metric: str | None = key(None, "also keep the best checkpoints by this metric of the test split, e.g. accuracy")
    mode: str = key("max", "whether larger (max) or smaller (min) is better", "max | min")
    keep: int = key(1, "how many of the best to keep", ">= 1")


@dataclass
class Checkpoint:
    every_steps: int | None = key(None, "save every so many steps", ">= 1")
    every_secs: float | None = key(None, "save when so many seconds have gone by since the last save", "> 0")
    every_epochs: int | None = key(1, "save every so many epochs; the end is always saved", ">= 1")
    keep: int = key(2, "how many of the newest checkpoints to keep", ">= 1")
    best: Best = key(Best, "best checkpoints, kept besides the newest")


@dataclass
class Summary:
    every_steps: int = key(20, "write training metrics every so many steps", ">= 1")
    writers: list[str] = key(list(WRITERS), "where metrics go: any of tensorboard, jsonl", "each: tensorboard | jsonl")


@dataclass
class Restart:
    max_restarts: int = key(3, "how often the supervisor may start a failed attempt again", ">= 0")
    backoff_secs: float = key(1.0, "pause before the first restart; doubles each time", ">= 0")


@dataclass
class Launch:
    inline: bool = key(False, "train in this very process (for a debugger) instead of in supervised workers")


@dataclass
class Experiment:
    name: str | None = key(None, "first part of the run directory's name; null: <model>-<dataset>")
    runs_dir: str = key("runs", "where run directories are made")
    seed: int = key(0, "the only source of randomness", ">= 0")
    mode: str = key("train", "what to do: train, or evaluate or export a run (with resume=)", " | ".join(MODES))
    precision: str = key("float32", "float32, mixed_bfloat16 or mixed_float16", " | ".join(PRECISIONS))
    jit: bool = key(False, "compile forward and backward pass with XLA")
    deterministic: bool = key(False, "deterministic kernels; a GPU needs it to repeat bit for bit, a CPU does not")
    resume: str = key("auto", "auto: continue this run if it exists; never: start afresh; or a run directory")
    init_from: str | None = key(None, "take the weights, and nothing else, from this run or checkpoint", "exists")
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


def check(node: Any, path: str = "") -> list[str]:
    """Checks every key of a schema object against its rule, then the rules across keys; returns the problems."""
    problems = []
    for item in fields(node):
        value, name = getattr(node, item.name), f"{path}{item.name}"
        rule = item.metadata["rule"]
        if is_dataclass(value):
            problems += check(value, f"{name}.")
        elif rule and (problem := broken(value, rule)):
            problems.append(f"{name} ({value}) {problem}")
    if isinstance(node, Experiment) and not problems:
        problems += _check_pairs(node)
    return problems


def _check_pairs(experiment: Experiment) -> list[str]:
    return [
        problem
        for section, first, second in (("train", "steps", "epochs"), ("batch", "global_size", "per_replica"))
        if (problem := _exactly_one(section, getattr(experiment, section), first, second))
    ]


def _exactly_one(section: str, node: Any, first: str, second: str) -> str | None:
    a, b = getattr(node, first), getattr(node, second)
    if a is not None and b is not None:
        return f"{section}.{first} ({a}) and {section}.{second} ({b}) are both set, exactly one must be; add {section}.{second}=null"
    if a is None and b is None:
        return f"neither {section}.{first} nor {section}.{second} is set, exactly one must be; add {section}.{first}=<number>"
    return None
