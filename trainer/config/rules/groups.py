"""Rules of the groups: each node fits the signature of its target. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainer.config.options import targets
from trainer.config.rules import env, loop
from trainer.config.schema import NAMED_GROUPS, Experiment

TARGET_GROUPS = (
    "model", "dataset", "augment", "env", "buffer", "task", "optimizer", "schedule", "strategy",
    "search",
)  # fmt: skip
"""Groups with one choice, which is a `_target_` with its options."""

OPTIONAL_GROUPS = ("model", "optimizer")
"""Target groups that a task may do without: `trainer.config.loading` checks when."""


def check(experiment: Experiment) -> Iterator[str]:
    """Yield the problems of an experiment, one line each."""
    groups = TARGET_GROUPS if loop.name_of(experiment) is None else ("strategy", "search", "loop")
    for group in groups:
        node = getattr(experiment, group)
        if node is not None or group not in (*OPTIONAL_GROUPS, *env.absent(experiment)):
            yield from targets.check(node, group, group)
    for section in NAMED_GROUPS:
        nodes = getattr(experiment, section)
        if not isinstance(nodes, Mapping):
            yield (
                f"{section} ({nodes}) must be a mapping from names to {section}; "
                f"choose one with {section}=<choice>"
            )
            continue
        for name, node in nodes.items():
            yield from targets.check(node, f"{section}.{name}", section)
