"""Identity: which keys name a run directory, and which may change when a run is continued.

The name of a run directory contains a hash of the keys that make the experiment. So the same
command finds the same directory: a preempted job resumes without a human, and a sweep knows which
of its points are done.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config.options import constraints
from trainer.config.rules import env, loop
from trainer.config.schema import Experiment
from trainer.runs import migrations, normalization


class Kind(enum.Enum):
    """The effect of a changed key on a run that is continued."""

    FREE = "changes no number of the training; may change at any time"
    SEMANTIC = "changes numbers, and the checkpoint still fits; may change if resume_allow names it"
    STRUCTURAL = "makes variables; may not change"


KINDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.FREE: (
        "name", "runs_dir", "mode", "resume", "resume_allow", "choices", "checkpoint", "summary",
        "restart", "preemption", "watchdog", "actors", "plan", "verify", "benchmark", "devices",
        "launch", "store", "record", "sweep", "search", "metrics", "writers", "predict", "export",
        "evaluate.sidecar", "train.steps", "train.epochs", "train.steps_per_loop", "dataset.path",
        "dataset.test_path", "dataset.max_corrupt_records",
        "dataset.processes", "dataset.cache", "dataset.cache_dir",
        "strategy", "strategy.hosts", "strategy.isolate", "strategy.start_timeout_secs",
        "strategy.timeout_secs",
    ),
    Kind.SEMANTIC: (
        "seed", "precision", "jit", "eager", "deterministic", "init_from",
        "init_allow", "init_rename", "train.steps_per_epoch", "train.clip_norm", "train.clip_value",
        "train.unfreeze", "train.ema_decay", "batch", "evaluate",
        "divergence", "dataset", "augment", "env", "buffer", "task", "optimizer", "schedule",
        "callbacks", "loop", "fault", "model.dropout", "model.l2", "model.momentum",
        "model.synchronized", "model.weights",
    ),
    Kind.STRUCTURAL: (
        "model", "train.freeze", "train.lora", "env._target_", "env.id", "dataset._target_",
        "dataset.image_size", "dataset.channels", "dataset.num_classes", "dataset.fields",
        "task._target_", "optimizer._target_", "callbacks.*._target_", "loop._target_",
        "divergence.window",
    ),
}  # fmt: skip
"""Every key, or a section for all keys in it; the longest entry applies. Unknown keys, such as the
options of a user's own model, have the kind of their section."""

NAMING = frozenset(
    {"train.steps", "train.epochs", "strategy", "devices", "dataset.path", "dataset.test_path"}
)
"""Free entries that name the run directory nevertheless. With `resume=<run>` they may change: it
trains longer, on other hardware, from moved data."""

_MAKES_VARIABLES: Mapping[str, Callable[[Any], bool]] = {
    "precision": lambda value: value == "mixed_float16",  # the loss scale
    "train.ema_decay": lambda value: value is not None,  # the averages
    "optimizer.momentum": bool,  # slots
}
"""Semantic keys with values that create variables: a change from or to one is structural."""

_KIND_OF = {entry: kind for kind, entries in KINDS.items() for entry in entries}
_COMMAND_KEYS = ("resume", "resume_allow", "mode", "choices", "sweep", "search")


@dataclass(frozen=True)
class Change:
    """A key that differs between a run and the command that continues it; None: it is missing.

    Attributes:
        key: its dotted key.
        before: its value in the run.
        now: its value in the command.
        role: the key that has the same effect: `model.width` for `task.generator.width` where the
            option `generator` of the task is a model; None: the key itself.
    """

    key: str
    before: Any
    now: Any
    role: str | None = field(default=None, compare=False)

    @property
    def kind(self) -> Kind:
        """The effect of the change."""
        key = self.role or self.key
        makes_variables = _MAKES_VARIABLES.get(key)
        if makes_variables and makes_variables(self.before) != makes_variables(self.now):
            return Kind.STRUCTURAL
        return _KIND_OF[entry(key)]

    def __str__(self) -> str:
        before = constraints.format_value(self.before)
        return f"{self.key}: {before} -> {constraints.format_value(self.now)}"


@functools.cache
def entry(key: str) -> str:
    """Return the entry of KINDS that applies to a key.

    Raises:
        LookupError: there is none; a new key of the schema needs a kind.
    """
    parts = key.split(".")
    entries = [name for name in _KIND_OF if _matches(name.split("."), parts)]
    if not entries:
        raise LookupError(f"{key} has no kind; add it to KINDS in trainer/runs/identity.py")
    return max(entries, key=lambda name: name.count("."))


def names_run(key: str) -> bool:
    """Return whether another value of a key names another run directory."""
    name = entry(key)
    return _KIND_OF[name] is not Kind.FREE or name in NAMING


def run_name(experiment: Experiment) -> str:
    """Return the name of the run directory, `<name>-<hash>`."""
    data = env.data_group(experiment)
    dataset = (experiment.choices or {}).get(data, data)
    loop_name = loop.name_of(experiment)
    name = (
        experiment.name or loop_name or f"{trained_choice(experiment)}-{dataset}".replace("/", "-")
    )
    values = normalization.leaves(experiment)
    first = migrations.first_keys(values)
    naming = {
        first.get(key, key): value
        for key, value in normalization.differing(values).items()
        if names_run(key)
    }
    digest = hashlib.sha256(json.dumps(naming, sort_keys=True, default=str).encode()).hexdigest()
    return f"{name}-{digest[:8]}"


def trained_choice(experiment: Experiment) -> str:
    """Return the choice that says what is trained: the model, or the task if it has its own."""
    group = "task" if experiment.model is None else "model"
    return str((experiment.choices or {}).get(group, group))


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return every key that differs, except those that concern a single command.

    Args:
        before: the values by key with which the run was trained.
        now: the values by key with which it is continued.
    """
    before, now = normalization.completed(before), normalization.completed(now)
    keys = [key for key in dict.fromkeys([*before, *now]) if not _within(key, _COMMAND_KEYS)]
    # An empty section counts as missing: its first key is the change.
    pairs = ((key, before.get(key), now.get(key)) for key in keys)
    groups = {**normalization.task_groups(before), **normalization.task_groups(now)}
    differences = (
        Change(key, None if old == {} else old, None if new == {} else new, _role(key, groups))
        for key, old, new in pairs
    )
    return [
        change
        for change in differences
        if normalization.normal(change.before) != normalization.normal(change.now)
    ]


def _role(key: str, groups: Mapping[str, str]) -> str | None:
    node = ".".join(key.split(".")[:2])
    return groups[node] + key.removeprefix(node) if node in groups else None


def change_problems(path: Path, differing: Sequence[Change], experiment: Experiment) -> list[str]:
    """Return which changes are not allowed and the ways out, one line each, or nothing.

    Args:
        path: the run directory.
        differing: all changes.
        experiment: the configuration that continues the run.
    """
    loop_name = loop.name_of(experiment)
    if loop_name is not None and any(entry(change.key) == "strategy" for change in differing):
        return [
            f"{path} was trained with another strategy, and a run of loop ({loop_name}) keeps "
            "its own: what a step computes and what streams give depends on the replicas and "
            "processes; leave the strategy as it was, or start a new run"
        ]
    semantic = [change.key for change in differing if change.kind is Kind.SEMANTIC]
    structural = [change.key for change in differing if change.kind is Kind.STRUCTURAL]
    allowed = experiment.resume_allow
    rejected = [*structural, *(key for key in semantic if not _within(key, allowed))]
    if not rejected:
        return []
    lines = [
        f"  {change}{' (makes variables)' if change.key in structural else ''}"
        for change in differing
        if change.key in rejected
    ]
    pronoun, old = ("it", "it was") if len(rejected) == 1 else ("them", "they were")
    is_named = experiment.resume not in ("auto", "never")
    keep = f"leave {pronoun} as {old}" if is_named else f"go on as it was with resume={path} alone"
    resume = "" if is_named else f"resume={path} "
    sections = ",".join(_sections(semantic))
    allow = "" if structural else f"allow {pronoun} with {resume}resume_allow=[{sections}], "
    condition = ", if the model is the same" if structural else ""
    new = f"start a new run (init_from={path} takes its weights{condition})"
    return [f"{path} was trained with other values:", *lines, f"{keep}, {allow}or {new}"]


def _sections(keys: Sequence[str]) -> list[str]:
    """Return the keys, with a section instead of its keys where its choice has changed."""
    sections = [key.removesuffix("._target_") for key in keys if key.endswith("._target_")]
    return [*sections, *(key for key in keys if not _within(key, sections))]


def _matches(name: Sequence[str], parts: Sequence[str]) -> bool:
    return len(name) <= len(parts) and all(
        word in ("*", part) for word, part in zip(name, parts, strict=False)
    )


def _within(key: str, parents: Sequence[str]) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)
