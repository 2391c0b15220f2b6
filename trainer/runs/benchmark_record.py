"""benchmark.json: what mode=benchmark has measured, and what follows from it. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trainer.files import read_json, write_json

FILE = "benchmark.json"

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
        share = max(size.input_wait, size.communication)
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
                text += ", less (strategy.compress), or another way (strategy.communication)"
        return {"name": name, "text": text}

    def speedup(self, size: Size) -> float:
        """Return the examples per second of a size as a multiple of those of the smallest."""
        return size.examples_per_sec / self.sizes[0].examples_per_sec


def write(path: Path, record: BenchmarkRecord) -> None:
    """Write a record to a directory, with what follows from its figures.

    Raises:
        StorageError: it cannot be written.
    """
    content = asdict(record)
    for values, size in zip(content["sizes"], record.sizes, strict=True):
        values |= {"efficiency": size.efficiency, "speedup": record.speedup(size)}
    write_json(path / FILE, {**content, "limit": record.limit})


def read(path: Path) -> BenchmarkRecord | None:
    """Return the record in a directory; None: there is none."""
    try:
        content = read_json(path / FILE)
    except FileNotFoundError:
        return None
    sizes = [Size(**_fields(Size, size)) for size in content["sizes"]]
    return BenchmarkRecord(**{**_fields(BenchmarkRecord, content), "sizes": sizes})


def _fields(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    return {item.name: content[item.name] for item in fields(kind)}


def directory_of(run_dir: Path) -> Path:
    """Return where the benchmark of a run's configuration is."""
    return run_dir.with_name(f"{run_dir.name}-benchmark")
