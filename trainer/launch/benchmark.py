"""mode=benchmark: measures how a run scales over its replicas, and tells what limits it.

Of each size, 1, 2, ... to that of the configuration, two things are measured: the run itself; and
the same work without the exchange, so many processes of one replica each that train at the same
time. The batch of a replica is always the same. What is left between the two is communication.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from trainer.cli.report import scaling
from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.files import write_atomically
from trainer.launch.benchmark_experiments import Variants
from trainer.launch.benchmark_limit import limit_of
from trainer.launch.benchmark_measurement import Measurement
from trainer.launch.benchmark_processes import MeasurementError
from trainer.launch.fork_server import ForkServer
from trainer.launch.resolved_run import Command, ResolvedRun, refuse_declared_cluster, resolve
from trainer.runs import benchmark_record, identity
from trainer.runs.benchmark_record import BenchmarkRecord
from trainer.text import align_columns


def run(command: Command, server: ForkServer | None = None) -> int:
    """Measure, print a table, and write benchmark.json and report.html; return the exit code.

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
    limit = limit_of(record)
    _print(record)  # first: figures that cannot be written are not lost
    benchmark_record.write(folder, record, asdict(limit))
    write_atomically(folder / "report.html", scaling.render(record, folder.name, limit.text))
    print(f"Results: {folder / benchmark_record.FILE} and report.html beside it")
    print(f"Change first: {limit.text}.")
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
        record = Measurement(experiment, resolved.strategy, variants, own_server).measure()
    except (ConfigError, KeyboardInterrupt):
        _remove(folder)
        raise
    finally:
        if server is None:
            own_server.release()
    shutil.rmtree(folder, ignore_errors=True)
    return record


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
    rows = scaling.size_rows(record)
    lines = [
        "",
        scaling.heading(record),
        "",
        *align_columns(rows, "<" + ">" * len(record.sizes)),
        f"Traffic: {record.largest.traffic}",
        "",
    ]
    if record.kernels:
        lines += [*align_columns(scaling.kernel_rows(record), "<>>"), ""]
    print("\n".join(lines), flush=True)
