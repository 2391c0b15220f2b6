"""mode=plan: shows what a run would be, also on other hardware, and trains nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from trainer.cli.terminal import Terminal
from trainer.cluster import environment
from trainer.cluster.spec import Cluster
from trainer.config.batch_sizes import BatchSizes, resolve_batch_sizes
from trainer.config.loading import plain
from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DONE, WRONG_INPUT, ConfigError
from trainer.launch.processes import ask_module
from trainer.launch.run_context import Command, resolve
from trainer.strategies.strategy import Strategy
from trainer.text import format_bytes

_UPDATED = ("optimizer", "averages")
"""What is held where the variables are updated."""


def run(command: Command) -> int:
    """Print devices, batch, length, memory and traffic of a run; return the exit code.

    Raises:
        ConfigError: the run cannot be, or the number of replicas is needed.
    """
    experiment = command.experiment
    strategy, cluster = resolve(experiment)
    num_replicas, reason = _num_replicas(experiment, strategy, cluster)
    sizes = resolve_batch_sizes(experiment.batch, num_replicas)
    code, measured = _measure(experiment, num_replicas)
    if measured is None:
        return code
    process_ids = cluster.process_ids or strategy.process_ids(None)
    processes = ", ".join(map(str, process_ids)) or "one"
    rows = [
        ("Strategy", f"{experiment.choices['strategy']}{reason}"),
        ("Processes", processes),
        ("Batch", str(sizes)),
        ("Length", measured["length"]),
        *_memory(measured, strategy.parameters_apart),
        *_kept(measured, experiment),
        ("Traffic", _traffic(strategy, sizes, measured)),
    ]
    Terminal().show_table([(name and f"{name}:", text) for name, text in rows], "<<")
    print("Nothing was trained or written.")
    return DONE


def _num_replicas(experiment: Experiment, strategy: Strategy, cluster: Cluster) -> tuple[int, str]:
    """Return the number of replicas, and where it comes from, in words.

    Raises:
        ConfigError: `plan.replicas` contradicts the strategy, or the number is unknown here.
    """
    assumed = experiment.plan.replicas
    count = 1 if strategy.asynchronous else strategy.num_replicas()
    choice = f"strategy={experiment.choices['strategy']}"
    if count is not None and assumed not in (None, count):
        raise ConfigError(
            f"plan.replicas ({assumed}) must be null or {count}: {choice} has {count} as it is "
            "configured"
        )
    if count is not None:
        return count, ""
    if assumed is not None:
        return assumed, f", {assumed} replicas assumed"
    if not strategy.uses_gpus:
        raise ConfigError(
            f"plan.replicas (null) must be the number of cores: {choice} cannot find it without "
            "its devices; add plan.replicas=8"
        )
    gpus = len(environment.visible_gpus())
    processes = len(cluster.trainers or strategy.process_ids(None)) or 1
    here = gpus if cluster.is_declared else gpus // processes  # GPUs of one process
    kind = "CPU" if gpus == 0 else f"{gpus} GPUs" if gpus > 1 else "GPU"
    reason = f", with the {kind} of this machine (plan.replicas=<n> assumes others)"
    return processes * max(1, here), reason


def _measure(experiment: Experiment, num_replicas: int) -> tuple[int, dict[str, Any] | None]:
    """Build the model in its own process; return its exit code and what it has measured."""
    request = {"experiment": plain(experiment), "num_replicas": num_replicas}
    answer = ask_module(["trainer.worker.model_sizes"], json.dumps(request))
    if answer.code == WRONG_INPUT:
        raise ConfigError(*answer.value)
    if answer.code != DONE:
        sys.stderr.write(answer.errors)
        return CRASHED, None
    return DONE, answer.value


def _memory(measured: Mapping[str, Any], place: str | None) -> Iterator[tuple[str, str]]:
    """Yield the rows about parameters, and about memory: of a replica, and of another `place`."""
    for name, model in measured["models"].items():
        text = f"{model['trainable']:,} trainable parameters, {model['fixed']:,} others"
        yield ("Model" if name == "model" else f"Model {name}"), text
    kinds = measured["bytes"]
    # Where variables are apart, a replica has a copy of the weights while it computes.
    kept = {name: size for name, size in kinds.items() if not place or name not in _UPDATED}
    yield "Memory", f"about {_sum_text(kept, 'a replica')}"
    if place:
        apart = {name: kinds[name] for name in ("weights", *_UPDATED)}
        yield "", f"about {_sum_text(apart, place)}"


def _kept(measured: Mapping[str, Any], experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the row about the state that a process keeps for a restart, if it does."""
    if experiment.checkpoint.memory != "never":
        size = sum(measured["bytes"][name] for name in ("weights", *_UPDATED))
        yield "", f"about {format_bytes(2 * size)} a process: its state, twice, for a restart"


def _sum_text(kinds: Mapping[str, int], place: str) -> str:
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in kinds.items() if size)
    return f"{format_bytes(sum(kinds.values()))} {place}: {parts}"


def _traffic(strategy: Strategy, sizes: BatchSizes, measured: Mapping[str, Any]) -> str:
    """Return how many bytes a replica sends in a step, and how."""
    kinds = measured["bytes"]
    if sizes.num_replicas == 1 and not strategy.asynchronous:
        return "none: there is one replica"
    size, text = strategy.traffic(
        kinds["gradients"], kinds["weights"], sizes.num_replicas, in_tree=sizes.shards is not None
    )
    return f"{format_bytes(size)} a step and replica: {text}"
