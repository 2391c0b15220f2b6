"""verify.layouts: trains the experiment on each layout of this machine, and compares the bits.

A layout is a strategy with a number of devices or processes. With `batch.shards` all layouts end
with the same bits, unless the user's own code depends on how the batch is cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.cluster import environment
from trainer.config import loading
from trainer.config.rules.batch_sizes import resolve_batch_sizes
from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.launch.modes.run_comparison import Outcome, differences, first_step
from trainer.launch.modes.verify import Runs, run_check
from trainer.launch.processes.module_process import ask_module
from trainer.launch.resolved_run import Command, refuse_declared_cluster, resolve, select_run
from trainer.runs.checkpoint_marker import committed_steps

_COUNTS = (2, 4, 8)


@dataclass(frozen=True)
class Layout:
    """A strategy with a number of devices or processes.

    Attributes:
        name: how it is shown, and the beginning of its run's name.
        count: number of replicas.
        strategy: the node of the configuration.
        num_gpus: how many GPUs it uses; None: all there are.
    """

    name: str
    count: int
    strategy: dict[str, Any]
    num_gpus: int | None = None


def layouts(num_gpus: int) -> Iterator[Layout]:
    """Return the layouts of a machine with so many GPUs; one without splits its CPU."""
    strategies = "trainer.strategies"
    yield Layout("one_device", 1, {"_target_": f"{strategies}.one_device.OneDevice"})
    targets = {
        "mirrored": f"{strategies}.mirrored.Mirrored",
        "central_storage": f"{strategies}.central_storage.CentralStorage",
    }
    counts = [count for count in _COUNTS if not num_gpus or count <= num_gpus]
    for name, target in targets.items():
        for count in counts:
            node: dict[str, Any] = {"_target_": target}
            if not num_gpus:
                node["virtual_devices"] = count
            yield Layout(f"{name}-{count}", count, node, count if num_gpus else None)
    target = f"{strategies}.multi_worker.MultiWorker"
    for count in counts:
        yield Layout(f"multi_worker-{count}", count, {"_target_": target, "workers": count})


def run(command: Command) -> int:
    """Train a few steps on each layout; return 0 if all end with the same bits, else 1.

    Raises:
        ConfigError: the experiment cannot be trained on one device, or a cluster is declared.
    """
    experiment = command.experiment
    refuse_declared_cluster(experiment, select_run(experiment))
    first, *others = layouts(len(environment.visible_gpus()))
    resolve(_on(first, experiment))
    return run_check(command, "layouts", lambda runs: _compare(runs, first, others))


def _on(layout: Layout, experiment: Experiment) -> Experiment:
    placed = replace(experiment, strategy=layout.strategy)
    if layout.num_gpus is not None:
        placed.devices = replace(placed.devices, gpus=layout.num_gpus)
    return placed


def _compare(runs: Runs, first: Layout, others: Sequence[Layout]) -> int:
    """Train on all layouts, and tell how each differs from the first; return the exit code."""
    experiment = runs.shortened(first.name, {})
    code, reference = runs.train(_on(first, experiment), is_silent=True)
    if reference is None:
        return code
    print(f"{first.name}: {reference}", flush=True)
    worst = DONE
    for layout in others:
        placed = _on(layout, runs.shortened(layout.name, {}))
        try:
            resolve(placed)
            resolve_batch_sizes(placed.batch, layout.count)
        except ConfigError as error:
            print(f"{layout.name}: left out: {error.problems[0]}", flush=True)
            continue
        code, outcome = runs.train(placed, is_silent=True)
        if code > 128:
            return code
        text = f"failed with exit code {code}"
        if outcome is not None:
            text = _difference(
                reference, outcome, runs.run_dir(first.name), runs.run_dir(layout.name)
            )
        print(f"{layout.name}: {text or 'equal to the bit'}", flush=True)
        worst = CRASHED if text else worst
    if worst:
        _explain(_on(first, experiment), runs.run_dir(first.name))
    return worst


def _explain(experiment: Experiment, run_dir: Path) -> None:
    """Print what can make layouts differ, with its place in the user's code."""
    has_shards = experiment.batch.shards is not None
    if not has_shards:
        print("Without batch.shards only rounding is alike; add batch.shards=8.", flush=True)
    command = ["trainer.worker.modes.layout_findings", str(run_dir)]
    causes = ask_module(command, json.dumps(loading.plain(experiment))).value or []
    for line in causes:
        print(f"likely cause: {line}", flush=True)
    if not causes and has_shards:
        print(
            "With batch.shards only your own code can differ: look for what depends on the "
            "number of replicas or on the size of its batch.",
            flush=True,
        )


def _difference(reference: Outcome, outcome: Outcome, first: Path, other: Path) -> str:
    """Return how a run differs from that of the first layout, empty if not at all."""
    lines = differences(reference, outcome)
    if not lines:
        return ""
    step = first_step(reference, outcome)
    since = "" if step is None else f" from the metrics of step {step} on"
    parts = lines[-1:]
    prefixes = [
        str(run / "checkpoints" / f"ckpt-{committed_steps(run / 'checkpoints')[-1]}")
        for run in (first, other)
    ]
    largest = ask_module(["trainer.worker.modes.checkpoint_difference", *prefixes]).value
    if largest is not None:
        parts.append(f"by {largest[1]:.1e} at most, in {largest[0]}")
    return f"differs{since}; {'; '.join(parts)}"
