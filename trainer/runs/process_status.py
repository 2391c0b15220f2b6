"""logs/status-<process>.json: what the processes of one host do, for readers on any host.

Each command writes the file of its own host while it runs, named by its own process. A lock need
not be visible to a reader: a command lives if its record is new by the clock of the file system.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.errors import DamagedError, StorageError
from trainer.files import read_json, write_json

INTERVAL_SECS = 2.0
"""How often a record is written."""

PATIENCE_SECS = 10.0
"""The age of a record from which on its command counts as silent."""


@dataclass(frozen=True)
class ProcessStatus:
    """What one process does.

    Attributes:
        phase: as in `trainer.cluster.messages.Phase`; empty until its first message.
        end: how it ended, in a word; empty while it lives.
    """

    name: str
    phase: str
    step: int
    quiet_secs: float
    end: str = ""
    host: str | None = None


@dataclass(frozen=True)
class HostStatus:
    """What the processes of one command do.

    Attributes:
        cluster: the names of all processes, where each has its own command; else empty.
    """

    host: str
    cluster: Sequence[str]
    processes: Sequence[ProcessStatus]
    code: int | None = None


def write(run_dir: Path, name: str, status: HostStatus) -> None:
    """Replace the record of a command, named by its own process, if it can be written."""
    with suppress(StorageError):
        write_json(_path(run_dir, name), asdict(status), durable=False)


def read(run_dir: Path) -> dict[str, HostStatus]:
    """Return the records of a run by the names of the commands' own processes, the newest last."""
    statuses = []
    for path in (run_dir / "logs").glob("status-*.json"):
        with suppress(OSError, DamagedError, TypeError, KeyError):
            content = read_json(path)
            processes = [ProcessStatus(**process) for process in content.pop("processes")]
            status = HostStatus(**content, processes=processes)
            # Times of one file system, so of one clock.
            statuses.append((path.stat().st_mtime, path.stem.removeprefix("status-"), status))
    return {name: status for _, name, status in sorted(statuses, key=lambda item: item[:2])}


def age_secs(run_dir: Path, name: str, now: float) -> float:
    """Return how long ago a record was written, by the clock of the file system."""
    with suppress(OSError):
        return max(0.0, now - _path(run_dir, name).stat().st_mtime)
    return 0.0


def without_earlier(records: Mapping[str, HostStatus]) -> dict[str, HostStatus]:
    """Return the records without those that are left of an earlier cluster, of another size."""
    newest = list(records)[-1:]
    names = {*newest, *(name for each in newest for name in records[each].cluster)}
    return {name: status for name, status in records.items() if name in names}


def _path(run_dir: Path, name: str) -> Path:
    return run_dir / "logs" / f"status-{name}.json"


def process_start_time() -> float:
    """Return when this process was started, before Python itself, or now if that is unknown."""
    now = time.time()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - max(0.0, age)


def log_of(run_dir: Path, process: object) -> Path:
    """Return the log of one process of a run, such as `worker-0`."""
    return run_dir / "logs" / f"{process}.log"
