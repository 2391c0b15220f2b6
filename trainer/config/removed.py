"""What was removed before the first release, and what to use instead.

This file goes with that release.
"""

from __future__ import annotations

REMOVED: dict[str, str] = {
    "actors.inference": "actors act by themselves, with the weights that the learner sends",
    "augment.two_views": "docs/examples/contrastive has a dataset that augments each image twice",
    "augment=simclr": "docs/examples/contrastive has it as a separate project",
    "benchmark": "python -m benchmarks.scaling measures any configuration",
    "completion": "--shell-completion install=bash prints the script",
    "convert": "dataset.cache=disk keeps decoded examples on this machine",
    "dataset.cache=memory": "use dataset.cache=disk, whose file the system keeps in memory",
    "dataset=colored_digits": "docs/examples/contrastive has it as a separate project",
    "experiment=contrastive_digits": "docs/examples/contrastive has it as a separate project",
    "experiment=gan_2048": "use experiment=gan_digits batch.global_size=2048",
    "experiment=transfer_digits": "docs/examples/contrastive has it as a separate project",
    "fault=lose_worker_1_at_50": "use fault=kill_worker_1_at_50",
    "fault=return_worker_1_at_120": "use fault=kill_worker_1_at_50",
    "hydra/launcher": "use sweep.jobs, or 'slurm -m ... --submit' for a job of each point",
    "kubernetes": "docs/examples/kubernetes/job.yaml is the Job to copy",
    "mode=benchmark": "python -m benchmarks.scaling measures any configuration",
    "search.prune": "use search.pruner=NopPruner for none",
    "search.trials": "use search.max_points",
    "strategy.hosts": "set TF_CONFIG on each host; docs/how-to/cluster.md has an example",
    "strategy.min_workers": "runs resume on any number of workers; on Ray launch.ray.min_workers",
    "strategy.rejoin_secs": "on Ray use launch.ray.rejoin_secs",
    "strategy.update": "every process updates all weights",
    "summary.mfu": "TensorBoard's profiler (summary.profile) shows it",
    "task=contrastive": "docs/examples/contrastive has it as a separate project",
    "train.unfreeze": "make two runs: one with train.freeze, then one with init_from=<run>",
    "verify.layouts": "train the experiment with each strategy, and compare the runs with diff",
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
