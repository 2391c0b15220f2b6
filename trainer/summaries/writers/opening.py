"""Opens the writers of a configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trainer.cluster.messages import Channel
from trainer.config.instantiate import instantiate
from trainer.summaries.writers.background import Background
from trainer.summaries.writers.jsonl import JsonLines
from trainer.summaries.writers.writer import Writer


def open_writers(
    nodes: Mapping[str, Any],
    run_dir: Path,
    position: int,
    channel: Channel,
    *,
    leave_out: Collection[str] = (),
) -> list[Writer]:
    """Open writers, each in a thread of its own.

    Args:
        nodes: the section `writers` of the configuration.
        run_dir: the run directory.
        position: number of updates already reported.
        channel: receives a warning when the run goes on without a tracker.
        leave_out: names of writers that are not opened though they are configured.
    """
    opened: list[Writer] = []
    trackers = [name for name, node in nodes.items() if node.get("tracker")]
    if trackers and "jsonl" not in nodes and "jsonl" not in leave_out:
        # Trackers catch up from metrics.jsonl.
        opened.append(Background(partial(JsonLines, run_dir, position)))
    for name, node in nodes.items():
        if name not in leave_out:
            # Trackers are slow to import: that happens in the thread too.
            make = partial(_make, name, node, run_dir, position)
            lost = partial(_warn, channel, name) if name in trackers else None
            opened.append(Background(make, lost))
    return opened


def _make(name: str, node: Mapping[str, Any], run_dir: Path, position: int) -> Writer:
    writer: Writer = instantiate(node, f"writers.{name}", run_dir, position, leave_out=("tracker",))
    return writer


def _warn(channel: Channel, name: str, reason: str) -> None:
    channel.line(f"warning: {name} cannot be written to ({reason}); the run goes on without it")
