"""placement.json: which layers are on which device of a replica, and what that costs.

No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.files import read_json, write_json

_NAME = "placement.json"


@dataclass(frozen=True)
class DeviceRecord:
    """One device of the first replica.

    Attributes:
        name: its short name, such as GPU:0.
        layers: the paths of its layers.
        parameters: numbers in the variables of its layers.
        flops: "forward", "backward" and "update" -> floating-point operations in a step that
            TensorFlow's registry knows of.
    """

    name: str
    layers: Sequence[str]
    parameters: int
    flops: Mapping[str, int]


@dataclass(frozen=True)
class PlacementRecord:
    """How a model is divided, and what that costs, of the attempt that came last.

    Attributes:
        devices: the devices of the first replica.
        num_replicas: number of replicas.
        micro_batches: parts of a replica's batch that can be computed at the same time.
        bytes_within: "forward", "backward" and "update" -> bytes that a step sends between the
            devices of a replica.
        bytes_between: bytes that a step sends between devices of different replicas of a process.
        idle_pipelined: the share of the time in which the average device waits, computed.
        idle_sequential: the same if the parts were computed one after the other.
    """

    devices: Sequence[DeviceRecord]
    num_replicas: int
    micro_batches: int
    bytes_within: Mapping[str, int]
    bytes_between: int
    idle_pipelined: float
    idle_sequential: float


def write(run_dir: Path, record: PlacementRecord) -> None:
    """Write the record of a run."""
    write_json(run_dir / _NAME, asdict(record))


def remove(run_dir: Path) -> None:
    """Remove the record of an earlier attempt, whose replicas had several devices."""
    (run_dir / _NAME).unlink(missing_ok=True)


def read(run_dir: Path) -> PlacementRecord | None:
    """Return the record of a run; None if its replicas have one device each."""
    try:
        content = read_json(run_dir / _NAME)
    except FileNotFoundError:
        return None
    devices = [DeviceRecord(**device) for device in content.pop("devices")]
    return PlacementRecord(devices, **content)
