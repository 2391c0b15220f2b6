"""mode=benchmark: measures how a run scales over its replicas, and tells what limits it.

Of each size, 1, 2, ... to that of the configuration, three things are measured: a step of the run
itself; the same work alone, in so many processes of one replica each that train at the same time;
and the exchange alone. The batch of a replica is always the same. What is left between the first
two is communication.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.files import write_json
from trainer.launch.modes.benchmark_processes import (
    Host,
    MeasurementError,
    Variants,
    measure_together,
)
from trainer.launch.processes.fork_server import ForkServer
from trainer.launch.resolved_run import Command, ResolvedRun, refuse_declared_cluster, resolve
from trainer.runs import identity
from trainer.text import align_columns

_LARGE_SHARE = 0.25
"""An input or an exchange that takes this share of a step is what to change first."""


@dataclass(frozen=True)
class Size:
    """The steps of one number of replicas, the same work alone, and the exchange alone.

    Attributes:
        count: number of processes, or of devices of one process.
        replicas: number of replicas.
        step_secs: seconds of a step; the mean over the processes, as all that follow.
        examples_per_sec: of all replicas.
        alone_step_secs: seconds of a step of processes that have one replica each, and train at
            the same time and exchange nothing.
        exchange_secs: seconds of the gradient's sum alone; None: there is one replica.
        input_wait: share of the time in which steps waited for their input.
        processor_secs: processor time of one process in a step.
        gradient_bytes: of the gradient in float32.
        network_bytes: what the processes have sent by network, per replica, with all headers; None:
            not counted, for they have no network of their own.
    """

    count: int
    replicas: int
    step_secs: float
    examples_per_sec: float
    alone_step_secs: float
    exchange_secs: float | None
    input_wait: float
    processor_secs: float
    gradient_bytes: int
    network_bytes: float | None

    @property
    def efficiency(self) -> float:
        """The speed as a share of that without communication."""
        return self.alone_step_secs / self.step_secs


@dataclass(frozen=True)
class BenchmarkRecord:
    """A benchmark.

    Attributes:
        strategy: the choice of strategy.
        unit: what is counted: processes or devices.
        per_replica: examples in one step of each replica; the same at every size.
        secs: length of each measurement in seconds.
        sizes: from the smallest to that of the configuration.
    """

    strategy: str
    unit: str
    per_replica: int
    secs: float
    sizes: Sequence[Size]

    @property
    def limit(self) -> dict[str, str]:
        """The `name` of what limits it, input, communication or work, and a `text` with advice."""
        size = self.sizes[-1]
        communication = max(0.0, 1.0 - size.efficiency)  # waiting for slower replicas included
        share = max(size.input_wait, communication)
        percent = f"{100 * share:.0f} %"
        if share < _LARGE_SHARE:
            name = "work"
            text = (
                f"nothing but the work itself: steps wait {percent} of the time; a larger "
                "batch.per_replica, jit=true or precision=mixed_bfloat16 may help"
            )
        elif size.input_wait == share:
            name = "input"
            text = (
                f"input: steps wait for their data {percent} of the time; fetch less or faster, "
                "or from memory"
            )
        else:
            name = "communication"
            text = (
                f"communication: it takes {percent} of a step of {size.count} {self.unit}; "
                "exchange less often, with a larger batch.per_replica"
            )
            if self.unit == "processes":
                text += ", or give each worker only its share of the cores (devices.threads)"
        return {"name": name, "text": text}

    def content(self) -> dict[str, Any]:
        """Return what benchmark.json holds: the figures, and what follows from them."""
        content = asdict(self)
        for values, size in zip(content["sizes"], self.sizes, strict=True):
            values |= {"efficiency": size.efficiency, "speedup": self._speedup(size)}
        return {**content, "limit": self.limit}

    def table(self) -> str:
        """Return the figures for the user, a row each and a column for each size."""
        figures: dict[str, Callable[[Size], str]] = {
            self.unit: lambda size: str(size.count),
            "examples/s": lambda size: f"{size.examples_per_sec:,.0f}",
            "times the smallest": lambda size: f"{self._speedup(size):.2f}",
            "step, ms": lambda size: _ms(size.step_secs),
            "without exchange, ms": lambda size: _ms(size.alone_step_secs),
            "exchange alone, ms": lambda size: _ms(size.exchange_secs),
            "efficiency": lambda size: f"{100 * size.efficiency:.0f} %",
            "input wait": lambda size: f"{100 * size.input_wait:.0f} %",
        }
        rows = [[name, *map(text, self.sizes)] for name, text in figures.items()]
        heading = (
            f"strategy={self.strategy}, {self.per_replica} examples a step on each replica, "
            f"{self.secs:g} s for each measurement"
        )
        return "\n".join([heading, "", *align_columns(rows, "<" + ">" * len(self.sizes))])

    def _speedup(self, size: Size) -> float:
        return size.examples_per_sec / self.sizes[0].examples_per_sec


def run(command: Command) -> int:
    """Measure, print a table, and write benchmark.json; return the exit code.

    Args:
        command: the experiment and its command line.

    Raises:
        ConfigError: the configuration cannot work, or cannot be measured.
        StorageError: the results cannot be written.
    """
    experiment = command.experiment
    resolved = resolve(experiment)
    _check(experiment, resolved)
    run_dir = Path(experiment.runs_dir).expanduser() / identity.run_name(experiment)
    folder = run_dir.with_name(f"{run_dir.name}-benchmark")
    measurements = folder / "measurements"
    variants = Variants(experiment, resolved.strategy, measurements)
    shutil.rmtree(measurements, ignore_errors=True)  # of a benchmark that has failed
    server = command.server or ForkServer.acquire()
    sizes = []
    try:
        for count in variants.counts():
            sizes.append(measure_size(variants, count, server))
            print(f"{count}: {sizes[-1].examples_per_sec:,.0f} examples/s", flush=True)
    except MeasurementError as error:  # the logs of the processes stay
        print(f"error: {error}", file=sys.stderr)
        return CRASHED
    except (ConfigError, KeyboardInterrupt):
        shutil.rmtree(measurements, ignore_errors=True)
        with suppress(OSError):  # unless something else is in them
            folder.rmdir()
            folder.parent.rmdir()
        raise
    finally:
        if server is not command.server:
            server.release()
    shutil.rmtree(measurements, ignore_errors=True)
    record = BenchmarkRecord(
        strategy=str(experiment.choices["strategy"]),
        unit="processes" if resolved.strategy.process_ids(None) else "devices",
        per_replica=variants.sizes.per_replica,
        secs=experiment.benchmark.secs,
        sizes=sizes,
    )
    print(f"\n{record.table()}\n", flush=True)  # first: figures that cannot be written are not lost
    write_json(folder / "benchmark.json", record.content())
    print(f"Results: {folder / 'benchmark.json'}")
    print(f"Change first: {record.limit['text']}.")
    return DONE


def measure_size(
    variants: Variants, count: int, server: ForkServer, hosts: Sequence[Host] = ()
) -> Size:
    """Measure the run with so many processes or devices, then its replicas alone.

    Args:
        variants: of the experiment.
        count: how many processes or devices.
        server: forks the processes.
        hosts: see `measure_together`.

    Raises:
        ConfigError: a process finds something wrong with the configuration.
        MeasurementError: a process has failed.
    """
    together = measure_together([variants.together(count)], server, hosts)
    replicas = together[0]["replicas"]
    alone = together
    if replicas > 1:
        alone = measure_together([variants.alone(number) for number in range(replicas)], server)
    sent = [report["network_bytes"] for report in together]
    return Size(
        count=count,
        replicas=replicas,
        **{
            name: fmean(report[name] for report in together)
            for name in ("step_secs", "examples_per_sec", "input_wait", "processor_secs")
        },
        alone_step_secs=fmean(report["step_secs"] for report in alone),
        exchange_secs=together[0]["exchange_secs"],
        gradient_bytes=together[0]["gradient_bytes"],
        # Each process has counted the bytes of all on its host.
        network_bytes=None
        if len(sent) == 1 or None in sent
        else fmean(sent) * max(1, len(hosts)) / replicas,
    )


def _check(experiment: Experiment, resolved: ResolvedRun) -> None:
    """Refuse what cannot be measured.

    Raises:
        ConfigError: the reason.
    """
    strategy = resolved.strategy
    refuse_declared_cluster(experiment, resolved)
    if strategy.asynchronous:
        raise ConfigError(
            "mode (benchmark) measures steps that all replicas make together, and "
            f"strategy={experiment.choices['strategy']} hands steps out to its workers; "
            "use another strategy"
        )
    if strategy.devices_per_replica > 1:
        raise ConfigError(
            f"strategy.devices_per_replica ({strategy.devices_per_replica}) must be 1 for "
            "mode=benchmark, which compares with replicas of one device that exchange nothing"
        )


def _ms(secs: float | None) -> str:
    return "-" if secs is None else f"{1000 * secs:.{2 if secs >= 0.001 else 3}f}"
