"""What makes two configurations the same experiment. No TensorFlow.

The run directory is named by a hash of what makes the experiment, so the same command finds the same directory: a
preempted job resumes without a human, and a sweep knows which of its points are done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainer import config
from trainer.schema import Experiment

FREE = (
    "name", "runs_dir", "mode", "resume", "choices", "checkpoint", "summary", "restart", "launch", "train.steps_per_loop",
    "preemption", "watchdog", "verify", "resume_allow",
    "strategy.hosts", "strategy.isolate", "strategy.start_timeout_secs", "strategy.timeout_secs",
    "evaluate.sidecar",
)  # fmt: skip
"""Keys that change no number of the training: they are not part of the identity and may change from attempt to attempt."""

RESUMABLE = ("train.steps", "train.epochs", "strategy", "dataset.path")
"""Keys that are part of the identity, but that `resume=<run>` may change: train longer, on other hardware, from moved data."""


def run_name(experiment: Experiment) -> str:
    """Gives the run directory's name, `<name>-<hash>`; two runs of one name differ in the hash."""
    choices = experiment.choices or {}
    name = experiment.name or f"{choices.get('model', 'model')}-{choices.get('dataset', 'dataset')}"
    content = {key: value for key, value in flatten(config.plain(experiment)) if not _within(key, FREE)}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
    return f"{name}-{digest[:8]}"


def changes(saved: Experiment, now: Experiment, allowed: tuple[str, ...] = FREE) -> list[tuple[str, Any, Any]]:
    """Gives (key, saved value, value now) of every key that differs and is not within an allowed one."""
    before, after = dict(flatten(config.plain(saved))), dict(flatten(config.plain(now)))
    keys = [*before, *(key for key in after if key not in before)]
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key) and not _within(key, allowed)]


def flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Gives every leaf of nested mappings with its dotted key."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _within(key: str, parents: tuple[str, ...]) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)
