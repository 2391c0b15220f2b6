"""verify.layouts: trains the experiment on each layout of this machine, and compares the bits.

A layout is a strategy with a number of devices or processes. With `batch.shards` all layouts end
with the same bits, unless the user's own code depends on how the batch is cut.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.cluster import environment
from trainer.config import loading
from trainer.config.rules.batch_sizes import resolve_batch_sizes
from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.launch.modes.run_comparison import Outcome, differences, first_step, read
from trainer.launch.modes.verify import run_command, shortened
from trainer.launch.processes.fork_server import ForkServer
from trainer.launch.processes.module_process import ask_module
from trainer.launch.resolved_run import Command, refuse_declared_cluster, resolve, select_run
from trainer.runs import identity
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
    runs_dir = Path(experiment.runs_dir).expanduser() / f"{identity.run_name(experiment)}-layouts"
    first, *others = layouts(len(environment.visible_gpus()))
    resolve(_experiment_on(first, experiment, runs_dir))
    if runs_dir.exists():
        shutil.rmtree(runs_dir)  # of an earlier check
    server = ForkServer.acquire()
    check = LayoutCheck(command, runs_dir, str(server.directory))
    try:
        code = check.compare(first, others)
    finally:
        server.release()
    if code == DONE:
        shutil.rmtree(runs_dir)
    elif runs_dir.exists():
        print(f"The runs are in {runs_dir}.", flush=True)
    return code


def _experiment_on(layout: Layout, experiment: Experiment, runs_dir: Path) -> Experiment:
    short = shortened(experiment, layout.name, runs_dir, {})
    short.strategy = layout.strategy
    if layout.num_gpus is not None:
        short.devices = replace(short.devices, gpus=layout.num_gpus)
    return short


@dataclass(frozen=True)
class LayoutCheck:
    """The runs of one check.

    Attributes:
        command: the experiment and its command line.
        runs_dir: where the runs are.
        server: the folder of the fork server of their workers.
    """

    command: Command
    runs_dir: Path
    server: str

    def compare(self, first: Layout, others: Sequence[Layout]) -> int:
        """Train on all layouts, and tell how each differs from the first; return the exit code."""
        code, reference = self._train(first)
        if reference is None:
            return code
        print(f"{first.name}: {reference}", flush=True)
        worst = DONE
        experiment = self.command.experiment
        for layout in others:
            try:
                resolve(_experiment_on(layout, experiment, self.runs_dir))
                resolve_batch_sizes(experiment.batch, layout.count)
            except ConfigError as error:
                print(f"{layout.name}: left out: {error.problems[0]}", flush=True)
                continue
            code, outcome = self._train(layout)
            if outcome is None:
                if code > 128:
                    return code
                text = f"failed with exit code {code}"
            else:
                text = self._difference(first, reference, layout, outcome)
            print(f"{layout.name}: {text or 'equal to the bit'}", flush=True)
            worst = CRASHED if text else worst
        if worst:
            self._explain(first)
        return worst

    def _explain(self, first: Layout) -> None:
        """Print what can make layouts differ, with its place in the user's code."""
        if self.command.experiment.batch.shards is None:
            print("Without batch.shards only rounding is alike; add batch.shards=8.", flush=True)
        lines = self._findings(first)
        for line in lines:
            print(f"likely cause: {line}", flush=True)
        if not lines and self.command.experiment.batch.shards is not None:
            print(
                "With batch.shards only your own code can differ: look for what depends on the "
                "number of replicas or on the size of its batch.",
                flush=True,
            )

    def _findings(self, first: Layout) -> list[str]:
        """Trace a step on the first layout; return what in it depends on the layout."""
        experiment = _experiment_on(first, self.command.experiment, self.runs_dir)
        command = ["trainer.worker.modes.layout_findings", str(self._run_dir(first))]
        answer = ask_module(command, json.dumps(loading.plain(experiment)))
        lines: list[str] = answer.value or []
        return lines

    def _train(self, layout: Layout) -> tuple[int, Outcome | None]:
        """Train to the end; return the exit code, and the outcome if it finished."""
        experiment = _experiment_on(layout, self.command.experiment, self.runs_dir)
        code = run_command(self.command, experiment, self.server, is_silent=True)
        if code != DONE:
            return (code if code > 0 else CRASHED), None
        return code, read(self._run_dir(layout))

    def _difference(
        self, first: Layout, reference: Outcome, layout: Layout, outcome: Outcome
    ) -> str:
        """Return how a layout differs from the first one, empty if not at all."""
        lines = differences(reference, outcome)
        if not lines:
            return ""
        step = first_step(reference, outcome)
        since = "" if step is None else f" from the metrics of step {step} on"
        return f"differs{since}; " + "; ".join(
            [*lines[-1:], *self._largest(self._run_dir(first), self._run_dir(layout))]
        )

    def _largest(self, first: Path, other: Path) -> list[str]:
        """Return the largest difference of a variable between two runs, in words."""
        prefixes = [
            str(run / "checkpoints" / f"ckpt-{committed_steps(run / 'checkpoints')[-1]}")
            for run in (first, other)
        ]
        difference = ask_module(["trainer.worker.modes.checkpoint_difference", *prefixes]).value
        if difference is None:
            return []
        name, largest = difference
        return [f"by {largest:.1e} at most, in {name}"]

    def _run_dir(self, layout: Layout) -> Path:
        (run_dir,) = self.runs_dir.glob(f"{layout.name}-*")
        return run_dir
