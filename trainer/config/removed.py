"""What was removed before the first release, and what to use instead.

This file goes with that release.
"""

from __future__ import annotations

REMOVED: dict[str, str] = {
    "benchmark": "python -m benchmarks.scaling measures any configuration",
    "augment.two_views": "docs/examples/contrastive has a dataset that augments each image twice",
    "augment=simclr": "docs/examples/contrastive has it as a separate project",
    "completion": "--shell-completion install=bash prints the script",
    "convert": "dataset.cache=disk keeps decoded examples on this machine",
    "dataset.cache=memory": "use dataset.cache=disk, whose file the system keeps in memory",
    "dataset=colored_digits": "docs/examples/contrastive has it as a separate project",
    "hydra/launcher": "use sweep.jobs, or 'slurm -m ... --submit' for a job of each point",
    "kubernetes": "docs/examples/kubernetes/job.yaml is the Job to copy",
    "mode=benchmark": "python -m benchmarks.scaling measures any configuration",
    "writers=csv": "read metrics.jsonl with pandas, or use runs --json",
}
"""The answer to a key, to `key=choice` and to a command that existed once."""


def removal(override: str) -> str:
    """Return the error line for an override, a key or a word that was removed, or ""."""
    override = override.lstrip("+~")
    key = override.partition("=")[0]
    parts = key.split(".")
    names = [override, *(".".join(parts[:length]) for length in range(len(parts), 0, -1))]
    name = next((name for name in names if name in REMOVED), None)
    return f"{name} was removed; {REMOVED[name]}" if name else ""
