"""How much memory this host, or the container in which the process is, has left."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""The limit and the use of a container, in the second and in the first version of cgroups.

The last two name the part of the use that is a cache of files, which gives way to others.
"""


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes available without swapping, or None if unknown."""
    values = []
    with suppress(OSError):
        if line := re.search(r"^MemAvailable: +(\d+) kB$", meminfo.read_text(), re.MULTILINE):
            values.append(1024 * int(line[1]))
    for limit, used, details, cached in _FILES:
        with suppress(OSError, ValueError):  # "max": there is no limit
            free = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
            line = re.search(rf"^{cached} (\d+)$", (cgroup / details).read_text(), re.MULTILINE)
            values.append(free + (int(line[1]) if line else 0))
    return min(values, default=None)


def resident_bytes(process: int) -> int:
    """Return the memory of a process, pages that it shares included; 0: it has ended."""
    with suppress(OSError):
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0
