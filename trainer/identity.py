"""What makes two configurations the same experiment, and what may change when a run is continued. No TensorFlow.

The run directory is named by a hash of what makes the experiment, so the same command finds the same directory: a
preempted job resumes without a human, and a sweep knows which of its points are done.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer import config, rules
from trainer.schema import Experiment


class Kind(enum.Enum):
    """What a change of a key does to a run that is continued."""

    FREE = "changes no number of the training; may change at any time"
    SEMANTIC = "changes numbers, and the checkpoint still fits; may change if resume_allow names it"
    STRUCTURAL = "makes variables; may not change"


KINDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.FREE: (
        "name", "runs_dir", "mode", "resume", "resume_allow", "choices", "checkpoint", "summary", "restart", "preemption", "watchdog",
        "verify", "launch", "sweep", "search", "metrics", "predict", "export", "evaluate.sidecar",
        "train.steps", "train.epochs", "train.steps_per_loop", "dataset.path", "dataset.max_bad",
        "strategy", "strategy.hosts", "strategy.isolate", "strategy.start_timeout_secs", "strategy.timeout_secs",
    ),
    Kind.SEMANTIC: (
        "seed", "precision", "jit", "deterministic", "init_from", "train.steps_per_epoch", "train.clip_norm", "train.ema_decay", "batch",
        "evaluate", "divergence", "dataset", "task", "optimizer", "schedule", "callbacks", "fault",
        "model.dropout", "model.l2", "model.momentum", "model.weights",
    ),
    Kind.STRUCTURAL: (
        "model", "dataset._target_", "dataset.image_size", "dataset.channels", "dataset.num_classes", "task._target_",
        "optimizer._target_", "callbacks.*._target_", "divergence.window",
    ),
}  # fmt: skip
"""Every key, or a section that stands for all below it; the longest entry holds. What nobody can know, such as the options of a
user's own model, has the class of its section."""

NAMING = frozenset({"train.steps", "train.epochs", "strategy", "dataset.path"})
"""Free entries that name the run directory nevertheless: `resume=<run>` alone trains longer, on other hardware, from moved data."""

_MAKES_VARIABLES: Mapping[str, Callable[[Any], bool]] = {
    "precision": lambda value: value == "mixed_float16",  # the loss scale
    "train.ema_decay": lambda value: value is not None,  # the averages
    "optimizer.momentum": bool,  # slots
}
"""Semantic keys some of whose values make variables: a change from or to such a value is structural."""

_KIND_OF = {entry: kind for kind, entries in KINDS.items() for entry in entries}
_OF_ONE_COMMAND = ("resume", "resume_allow", "mode", "choices", "sweep", "search")


class Change(NamedTuple):
    """A key that differs between a run and the command that continues it; None stands for a key that is not there."""

    key: str
    before: Any
    now: Any

    @property
    def kind(self) -> Kind:
        """What the change does."""
        makes = _MAKES_VARIABLES.get(self.key)
        if makes is not None and makes(self.before) != makes(self.now):
            return Kind.STRUCTURAL
        return _KIND_OF[entry(self.key)]

    def __str__(self) -> str:
        return f"{self.key}: {rules.shown(self.before)} -> {rules.shown(self.now)}"


@functools.cache
def entry(key: str) -> str:
    """Gives the entry of the table that holds for a key.

    Raises:
        LookupError: none does; a new key of the schema needs a class.
    """
    parts = key.split(".")
    holding = [name for name in _KIND_OF if _holds(name.split("."), parts)]
    if not holding:
        raise LookupError(f"{key} has no class; add it to KINDS in trainer/identity.py")
    return max(holding, key=lambda name: name.count("."))


def names_run(key: str) -> bool:
    """Whether another value of a key makes another run directory."""
    found = entry(key)
    return _KIND_OF[found] is not Kind.FREE or found in NAMING


def run_name(experiment: Experiment) -> str:
    """Gives the run directory's name, `<name>-<hash>`; two runs of one name differ in the hash."""
    choices = experiment.choices or {}
    name = experiment.name or f"{choices.get('model', 'model')}-{choices.get('dataset', 'dataset')}"
    naming = {key: _as_compared(value) for key, value in content(experiment).items() if names_run(key)}
    digest = hashlib.sha256(json.dumps(naming, sort_keys=True, default=str).encode()).hexdigest()
    return f"{name}-{digest[:8]}"


def _as_compared(value: Any) -> Any:
    """Gives equal numbers, such as 1 and 1.0, one form: what is no change must be no other run."""
    if isinstance(value, list):
        return [_as_compared(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def content(experiment: Experiment) -> dict[str, Any]:
    """Gives every leaf of the configuration with its dotted key."""
    return dict(flatten(config.plain(experiment)))


def flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Gives every leaf of nested mappings with its dotted key."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Gives every key that differs, except those that concern a single command.

    Args:
        before: the leaves of what the run was trained with.
        now: those of what it is to be continued with.
    """
    keys = [key for key in dict.fromkeys([*before, *now]) if not _within(key, _OF_ONE_COMMAND)]
    # An empty section is as good as none: its first key is the change.
    found = [Change(key, *(None if leaves.get(key) == {} else leaves.get(key) for leaves in (before, now))) for key in keys]
    return [change for change in found if change.before != change.now]


def refusal(path: Path, found: Sequence[Change], experiment: Experiment) -> list[str]:
    """Says which changes a run cannot be continued with, and the ways out, a line each; nothing if there are none.

    Args:
        path: the run directory.
        found: all that differs.
        experiment: what the run is to be continued with.
    """
    semantic = [change.key for change in found if change.kind is Kind.SEMANTIC]
    structural = [change.key for change in found if change.kind is Kind.STRUCTURAL]
    refused = [*structural, *(key for key in semantic if not _within(key, experiment.resume_allow))]
    if not refused:
        return []
    diff = [f"  {change}{' (makes variables)' if change.key in structural else ''}" for change in found if change.key in refused]
    it, was = ("it", "it was") if len(refused) == 1 else ("them", "they were")
    named = experiment.resume not in ("auto", "never")
    leave = f"leave {it} as {was}" if named else f"go on as it was with resume={path} alone"
    allow = f"allow {it} with {'' if named else f'resume={path} '}resume_allow=[{','.join(_shortest(semantic))}], "
    new = f"start a new run (init_from={path} takes its weights{', if the model is the same' if structural else ''})"
    return [f"{path} was trained with other values:", *diff, f"{leave}, {'' if structural else allow}or {new}"]


def _shortest(keys: Sequence[str]) -> list[str]:
    """Names a section instead of its keys where another choice was made."""
    sections = [key.removesuffix("._target_") for key in keys if key.endswith("._target_")]
    return [*sections, *(key for key in keys if not _within(key, sections))]


def _holds(name: Sequence[str], parts: Sequence[str]) -> bool:
    return len(name) <= len(parts) and all(word in ("*", part) for word, part in zip(name, parts, strict=False))


def _within(key: str, parents: Sequence[str]) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)
