"""benchmark.json: what mode=benchmark has measured, and what follows from it. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trainer.files import read_json, write_json

FILE = "benchmark.json"


@dataclass(frozen=True)
class Size:
    """The steps of one number of replicas, and the same work without their exchange.

    Attributes:
        count: number of processes, or of devices of one process.
        replicas: number of replicas.
        step_secs: seconds of a step; the mean over the processes, as all that follow.
        examples_per_sec: of all replicas.
        alone_step_secs: seconds of a step of processes that have one replica each, and train at
            the same time and exchange nothing.
        processor_secs: processor time of one process in a step.
        input_wait: share of the time in which steps waited for their input.
        gradient_bytes: of the gradient in float32, S.
        bound_bytes: what each replica sends at least in an all-reduce, 2 (n - 1) / n S
            (Patarasuk and Yuan 2009).
        planned_bytes: what each sends by the strategy's own account.
        traffic: that account in words.
        network_bytes: what the processes have sent by network, per replica, with all headers; None:
            not counted, for they have no network of their own.
        latency_secs: seconds of an all-reduce of one number; None: there is one replica.
        exchange_secs: seconds of the gradient's sum alone; None: likewise.
        peak_memory_mib: largest resident memory of a process.
        gpu_memory_mib: largest memory of a GPU; None: there is none.
    """

    count: int
    replicas: int
    step_secs: float
    examples_per_sec: float
    alone_step_secs: float
    processor_secs: float
    input_wait: float
    gradient_bytes: int
    bound_bytes: float
    planned_bytes: float
    traffic: str
    network_bytes: float | None
    latency_secs: float | None
    exchange_secs: float | None
    peak_memory_mib: float
    gpu_memory_mib: float | None

    @property
    def efficiency(self) -> float:
        """The speed as a share of that without communication."""
        return self.alone_step_secs / self.step_secs

    @property
    def predicted_efficiency(self) -> float:
        """The same as predicted: the work and the exchange, measured apart, one after the other."""
        return self.alone_step_secs / (self.alone_step_secs + (self.exchange_secs or 0.0))

    @property
    def communication(self) -> float:
        """The share of a step that the exchange costs, waiting for slower replicas included."""
        return max(0.0, 1.0 - self.efficiency)


@dataclass(frozen=True)
class BenchmarkRecord:
    """A benchmark.

    Attributes:
        strategy: the choice of strategy.
        unit: what is counted: processes or devices.
        per_replica: examples in one step of each replica; the same at every size.
        secs: length of each measurement in seconds.
        eager: whether each operation was run at once.
        sizes: from the smallest to that of the configuration.
        kernels: seconds of each kind of kernel in a step of one process at the largest size.
        gains: examples per second of a change, as a multiple of those without: `batch`, twice the
            batch; `compile`, with jit or without eager. Measured on one replica, and only if
            neither input nor communication is the limit.
    """

    strategy: str
    unit: str
    per_replica: int
    secs: float
    eager: bool
    sizes: Sequence[Size]
    kernels: Mapping[str, float] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)

    @property
    def largest(self) -> Size:
        """The size of the configuration."""
        return self.sizes[-1]

    def speedup(self, size: Size) -> float:
        """Return the examples per second of a size as a multiple of those of the smallest."""
        return size.examples_per_sec / self.sizes[0].examples_per_sec


def write(path: Path, record: BenchmarkRecord, limit: Mapping[str, Any]) -> None:
    """Write a record to a directory, with what limits the run.

    Raises:
        StorageError: it cannot be written.
    """
    content = asdict(record)
    for values, size in zip(content["sizes"], record.sizes, strict=True):
        values |= {
            "efficiency": size.efficiency,
            "predicted_efficiency": size.predicted_efficiency,
            "speedup": record.speedup(size),
        }
    write_json(path / FILE, {**content, "limit": dict(limit)})


def read(path: Path) -> BenchmarkRecord | None:
    """Return the record in a directory; None: there is none."""
    try:
        content = read_json(path / FILE)
    except FileNotFoundError:
        return None
    names = {item.name for item in fields(Size)}
    sizes = [
        Size(**{name: value for name, value in size.items() if name in names})
        for size in content["sizes"]
    ]
    del content["limit"]
    return BenchmarkRecord(**{**content, "sizes": sizes})


def directory_of(run_dir: Path) -> Path:
    """Return where the benchmark of a run's configuration is."""
    return run_dir.with_name(f"{run_dir.name}-benchmark")
