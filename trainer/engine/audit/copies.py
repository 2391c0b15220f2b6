"""Compares copies that must have the same bits, and names the one that most others contradict."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trainer.engine.process_group import ProcessGroup

Copy = Mapping[str, np.ndarray]
"""The tensors of one replica by name; the same names on all replicas."""


class Vote(NamedTuple):
    """Which of several copies differ.

    Attributes:
        reference: the first of the copies that most agree with.
        odd: the copies that differ from it, ascending.
        is_majority: whether more than half of all copies are like the reference; else nobody can
            tell which of them is right.
    """

    reference: int
    odd: list[int]
    is_majority: bool


def vote(digests: Sequence[Hashable]) -> Vote:
    """Compare the digests of all copies of one tensor."""
    digest, votes = Counter(digests).most_common(1)[0]
    odd = [number for number, other in enumerate(digests) if other != digest]
    return Vote(digests.index(digest), odd, 2 * votes > len(digests))


def owners(processes: Sequence[str], num_local: int) -> list[str]:
    """Return who holds each copy, in words: a process, or a replica of one that has several."""
    if num_local == 1:
        return list(processes)
    return [f"{name} (replica {i})" for name in processes for i in range(num_local)]


def differing_elements(first: np.ndarray, second: np.ndarray, word: str) -> str:
    """Describe how two arrays of one shape and type differ: the first such element, how many.

    Args:
        first: an array.
        second: another.
        word: what stands between their elements.
    """
    bits = [x.reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (first, second)]
    differs = np.any(bits[0] != bits[1], axis=1)
    position = np.unravel_index(int(np.argmax(differs)), first.shape)
    values = f" {word} ".join(f"{x[position].item():.9g}" for x in (first, second))
    where = f"element {[int(i) for i in position]} is " if position else ""
    count = np.count_nonzero(differs)
    return f"{where}{values} ({count:,} of {first.size:,} element{'s' * (first.size > 1)})"


def find_difference(group: ProcessGroup, owners: Sequence[str], copies: Sequence[Copy]) -> str:
    """Compare the copies of all processes; collective.

    Args:
        group: the processes, each of which has as many copies.
        owners: who holds each copy, of all processes in order.
        copies: this process's.

    Returns:
        A line that names the first tensor that differs, and whose copy; empty if none does. The
        same in all processes.
    """
    digests = [{name: _digest(value) for name, value in copy.items()} for copy in copies]
    rows = group.gather(*(_combined(digest) for digest in digests))
    if len({number for row in rows for number in row}) == 1:
        return ""
    content = json.dumps(digests)
    everyones = [
        copy
        for process in range(group.count)
        for copy in json.loads(group.broadcast_text(process, content))
    ]
    votes = {name: vote([digest[name] for digest in everyones]) for name in digests[0]}
    differing = {name: result for name, result in votes.items() if result.odd}
    name, result = next(iter(differing.items()))
    others = f"; so do {len(differing) - 1} more" if len(differing) > 1 else ""
    return f"{name} {_described(group, owners, name, result, copies)}{others}"


def _described(
    group: ProcessGroup, owners: Sequence[str], name: str, result: Vote, copies: Sequence[Copy]
) -> str:
    """Return whose copy of a tensor differs, and how; collective."""
    shown = result.odd[0], result.reference
    if result.is_majority:
        odd = ", ".join(owners[number] for number in result.odd)
        who = f"of {odd} differs from the {len(owners) - len(result.odd)} other copies'"
        word = "instead of"
    else:
        shown = min(shown), max(shown)
        who = (
            f"differs between {owners[shown[0]]} and {owners[shown[1]]}, and no majority tells "
            "which is wrong"
        )
        word = "and"
    first, second = (_brought(group, number, name, copies) for number in shown)
    return f"{who}: {differing_elements(first, second, word)}"


def _digest(value: np.ndarray) -> str:
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return hashlib.sha256(flat.data).hexdigest()[:16]


def _combined(digests: Mapping[str, str]) -> int:
    """Return one hash of 40 bits, which a sum over processes and replicas leaves room for."""
    return int(hashlib.sha256("".join(digests.values()).encode()).hexdigest()[:10], 16)


def _brought(group: ProcessGroup, number: int, name: str, copies: Sequence[Copy]) -> np.ndarray:
    """Return the tensor of a copy, wherever that is; collective."""
    own = copies[number % len(copies)][name]
    content = group.broadcast_bytes(number // len(copies), own.tobytes())
    return np.frombuffer(content, own.dtype).reshape(own.shape)
