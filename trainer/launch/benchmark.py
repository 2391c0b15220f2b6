"""mode=benchmark: measures how a run scales over its replicas, and tells what limits it.

Of each size, 1, 2, ... to that of the configuration, three things are measured: a step of the run
itself; the same work alone, in so many processes of one replica each that train at the same time;
and the exchange alone. The batch of a replica is always the same. What is left between the first
two is communication.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from trainer.cli.report import scaling
from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.launch.benchmark_experiments import Variants
from trainer.launch.benchmark_processes import BenchmarkProcesses, MeasurementError
from trainer.launch.fork_server import ForkServer
from trainer.launch.resolved_run import Command, ResolvedRun, refuse_declared_cluster, resolve
from trainer.runs import benchmark_record, identity
from trainer.runs.benchmark_record import BenchmarkRecord, Size
from trainer.text import align_columns


def run(command: Command, server: ForkServer | None = None) -> int:
    """Measure, print a table, and write benchmark.json; return the exit code.

    Args:
        command: the experiment and its command line.
        server: forks the processes; None: one is started.

    Raises:
        ConfigError: the configuration cannot work, or cannot be measured.
        StorageError: the results cannot be written.
    """
    experiment = command.experiment
    run_dir = Path(experiment.runs_dir).expanduser() / identity.run_name(experiment)
    folder = benchmark_record.directory_of(run_dir)
    try:
        record = measure(experiment, folder / "measurements", server)
    except MeasurementError as error:
        print(f"error: {error}", file=sys.stderr)
        return CRASHED
    _print(record)  # first: figures that cannot be written are not lost
    benchmark_record.write(folder, record)
    print(f"Results: {folder / benchmark_record.FILE}")
    print(f"Change first: {record.limit['text']}.")
    return DONE


def measure(
    experiment: Experiment, folder: Path, server: ForkServer | None = None
) -> BenchmarkRecord:
    """Measure an experiment, and tell the user of each measurement.

    Args:
        experiment: the user's.
        folder: for the files of the processes; removed at the end, unless one has crashed.
        server: forks the processes; None: one is started.

    Raises:
        ConfigError: the configuration cannot work, or cannot be measured.
        MeasurementError: a process has failed.
    """
    resolved = resolve(experiment)
    _check(experiment, resolved)
    variants = Variants(experiment, resolved.strategy, folder)
    shutil.rmtree(folder, ignore_errors=True)  # of a benchmark that has failed
    own_server = server or ForkServer.acquire()
    try:
        sizes = []
        for count in variants.counts():
            sizes.append(measure_size(variants, count, own_server))
            print(f"{count}: {sizes[-1].examples_per_sec:,.0f} examples/s", flush=True)
    except (ConfigError, KeyboardInterrupt):
        _remove(folder)
        raise
    finally:
        if server is None:
            own_server.release()
    shutil.rmtree(folder, ignore_errors=True)
    return BenchmarkRecord(
        strategy=str(experiment.choices["strategy"]),
        unit="processes" if resolved.strategy.process_ids(None) else "devices",
        per_replica=variants.sizes.per_replica,
        secs=experiment.benchmark.secs,
        sizes=sizes,
    )


def measure_size(variants: Variants, count: int, server: ForkServer) -> Size:
    """Measure the run with so many processes or devices, then its replicas alone.

    Raises:
        ConfigError: a process finds something wrong with the configuration.
        MeasurementError: a process has failed.
    """
    together = _measured(variants, [variants.together(count)], server)
    replicas = together[0]["replicas"]
    alone = together
    if replicas > 1:
        alone = _measured(variants, [variants.alone(number) for number in range(replicas)], server)
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
        # Each process has counted the bytes of all.
        network_bytes=None if len(sent) == 1 or None in sent else fmean(sent) / replicas,
    )


def _measured(
    variants: Variants, runs: Sequence[Experiment], server: ForkServer
) -> list[dict[str, Any]]:
    with BenchmarkProcesses(server, variants.experiment.watchdog.compile_secs) as processes:
        for run in runs:
            processes.start(run)
        reports = processes.measure()
        for warning in processes.warnings:
            print(warning, file=sys.stderr)
    return reports


def _remove(folder: Path) -> None:
    """Remove the files of the processes, and the directories above it that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
        folder.parent.parent.rmdir()


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


def _print(record: BenchmarkRecord) -> None:
    figures = {
        record.unit: [str(size.count) for size in record.sizes],
        "examples/s": [f"{size.examples_per_sec:,.0f}" for size in record.sizes],
        "times the smallest": [f"{record.speedup(size):.2f}" for size in record.sizes],
        "step, ms": [_ms(size.step_secs) for size in record.sizes],
        "without exchange, ms": [_ms(size.alone_step_secs) for size in record.sizes],
        "exchange alone, ms": [_ms(size.exchange_secs) for size in record.sizes],
        "efficiency": [f"{100 * size.efficiency:.0f} %" for size in record.sizes],
        "input wait": [f"{100 * size.input_wait:.0f} %" for size in record.sizes],
    }
    table = align_columns(
        [[name, *texts] for name, texts in figures.items()], "<" + ">" * len(record.sizes)
    )
    print("\n".join(["", scaling.heading(record), "", *table, ""]), flush=True)


def _ms(secs: float | None) -> str:
    return "-" if secs is None else f"{1000 * secs:.{2 if secs >= 0.001 else 3}f}"
