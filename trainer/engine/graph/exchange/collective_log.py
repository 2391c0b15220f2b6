"""The log of a step's collectives, so that replicas that communicate differently are found.

Every replica must make the same collectives in the same order, else they wait for one another or
add up what does not belong together. What one replica makes is compared with what the others made,
while the step is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

_END = "the end of the step"
_NEAR = 80  # characters of a nest that a message shows, from its start and around a difference


class CollectiveLog:
    """The collectives of one trace of the step, in order.

    Shared by the replicas of this process, which are traced in turn.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[str, int | None]] = []
        self._counts: dict[int | None, int] = {}

    def record(self, replica: int | None, line: str) -> None:
        """Record that a replica makes a collective.

        Args:
            replica: its number; None where one trace is for all.
            line: what it makes and where, "<what> at <file>:<line>".

        Raises:
            ValueError: another replica made a different one at this point.
        """
        number = self._counts[replica] = self._counts.get(replica, 0) + 1
        if number > len(self._lines):
            self._lines.append((line, replica))
            return
        other_line, other = self._lines[number - 1]
        if _operation(other_line) != _operation(line):
            raise ValueError(
                _difference(
                    number, f"replica {other} has", other_line, f"replica {replica} has", line
                )
            )

    def end(self, replica: int | None) -> None:
        """Record that a replica makes no more collectives.

        Raises:
            ValueError: another replica made more.
        """
        self.record(replica, _END)

    def lines(self) -> list[str]:
        """Return the collectives of this process's replicas, in order, for `first_difference`."""
        return [line for line, _ in self._lines]


def first_difference(mine: Sequence[str], theirs: Sequence[str]) -> str | None:
    """Compare the logs' lines of two processes.

    The same collective may be made at different places in the code.

    Returns:
        A message on the first collective that differs; None if all agree.
    """
    for number, (mine_line, their_line) in enumerate(zip_longest(mine, theirs, fillvalue=_END), 1):
        if _operation(mine_line) != _operation(their_line):
            return _difference(number, "here", mine_line, "there", their_line)
    return None


def _operation(line: str) -> str:
    """Return a line of the log without its place in the code."""
    return line.rsplit(" at ", 1)[0]


def _difference(number: int, first: str, line: str, second: str, other_line: str) -> str:
    rule = "all replicas must make the same, in the same order and with the same shapes"
    start = next((i for i, (a, b) in enumerate(zip(line, other_line, strict=False)) if a != b), 0)
    return (
        f"collective {number} of the step differs: {first} {_shortened(line, start)}, "
        f"{second} {_shortened(other_line, start)}; {rule}"
    )


def _shortened(line: str, start: int) -> str:
    """Leave out of a long nest what is far from the start of the difference."""
    operation = _operation(line)
    if len(operation) <= 2 * _NEAR:
        return line
    first = max(_NEAR, start - _NEAR // 2)
    near = operation[first : first + _NEAR]
    return f"{operation[:_NEAR]} ... {near} ...{line[len(operation) :]}"
