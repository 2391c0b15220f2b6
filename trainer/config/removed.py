"""What was removed before the first release, and what to use instead.

This file goes with that release.
"""

from __future__ import annotations

REMOVED: dict[str, str] = {
    "actors.inference": "actors act by themselves, with the weights that the learner sends",
    "benchmark": "python -m benchmarks.scaling measures any configuration",
    "convert": "dataset.cache=disk keeps decoded examples on this machine",
    "dataset.cache=memory": "use dataset.cache=disk, whose file the system keeps in memory",
    "experiment=gan_2048": "use experiment=gan_digits batch.global_size=2048",
    "fault=lose_worker_1_at_50": "fault=kill_worker_1_at_50 kills a worker that is restarted",
    "fault=return_worker_1_at_120": "fault=kill_worker_1_at_50 kills a worker that is restarted",
    "mode=benchmark": "python -m benchmarks.scaling measures any configuration",
    "strategy.min_workers": "a run resumes on any number of workers; on Ray write "
    "launch.ray.min_workers=<number>",
    "strategy.rejoin_secs": "a run resumes on any number of workers; on Ray write "
    "launch.ray.rejoin_secs=<secs>",
    "strategy.update": "every process updates all weights",
    "summary.mfu": "TensorBoard's profiler (summary.profile) shows it",
    "train.unfreeze": "make two runs: one with train.freeze, and a second that starts from it with "
    "init_from=<run>",
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
