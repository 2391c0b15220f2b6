"""Processor and GPU time of a recorded window by kind of kernel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_OPERATION = re.compile(r"(?:.*[^:])?:([A-Za-z_]\w*)")
"""The name of an operation's event on a CPU: node and type, `while/body/matmul:MatMul`."""


def kernel_times(folder: Path) -> dict[str, float]:
    """Return the seconds of each kind of kernel, the longest first.

    On a CPU the kind is the type of the operation; one that contains others, such as a function
    call, has only what is left of its own. On a GPU it is the name of the kernel, and the time on
    the CPU is left out.

    Args:
        folder: that of `tf.profiler.experimental.start`; its newest recording is read.

    Raises:
        FileNotFoundError: there is no recording.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    recordings = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    if not recordings:
        raise FileNotFoundError(f"there is no recording in {folder}")
    space = xplane_pb2.XSpace()
    space.ParseFromString(recordings[-1].read_bytes())
    picoseconds: Counter[str] = Counter()
    for plane in _planes(space.planes):
        names = {number: item.name for number, item in plane.event_metadata.items()}
        for line in plane.lines:
            for name, duration in _own_times(line.events, names):
                picoseconds[name] += duration
    return {name: duration / 1e12 for name, duration in picoseconds.most_common()}


def _planes(planes: Iterable[Any]) -> list[Any]:
    """Return the planes of the GPUs if there are any, else that of the CPU."""
    gpus = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    return gpus or [plane for plane in planes if plane.name == "/host:CPU"]


def _own_times(events: Iterable[Any], names: dict[int, str]) -> Iterator[tuple[str, int]]:
    """Yield the kind of each kernel of a thread or stream, with the picoseconds of its own."""
    open_events: list[tuple[int, str, int]] = []  # end, kind, own time so far
    for event in sorted(events, key=lambda event: (event.offset_ps, -event.duration_ps)):
        kind = kind_of(names[event.metadata_id])
        if kind is None:
            continue
        while open_events and open_events[-1][0] <= event.offset_ps:
            yield open_events.pop()[1:]
        if open_events:
            end, outer, own = open_events[-1]
            open_events[-1] = (end, outer, own - event.duration_ps)
        open_events.append((event.offset_ps + event.duration_ps, kind, event.duration_ps))
    for _, kind, own in open_events:
        yield kind, own


def kind_of(name: str) -> str | None:
    """Return the kind of kernel of an event by its name; None: it is no kernel."""
    if name.startswith(("Iterator::", "EagerLocalExecute:")):
        return None
    if match := _OPERATION.fullmatch(name):
        return match[1].removeprefix("_Mkl").removeprefix("_")
    return None
