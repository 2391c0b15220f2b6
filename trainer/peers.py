"""The processes that run every step together, and what they must decide alike.

A step, an evaluation and a save are collective: a process that stops, evaluates or saves alone leaves the others waiting. So
whatever only one process knows (a signal, a clock, the disk) is agreed here, by all of them and at the same point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import tensorflow as tf

from trainer.errors import DivergedError


class Peers:
    """All processes of a synchronous run; where there is only one, nothing is sent.

    Attributes:
        is_chief: whether this process alone leaves files.

    Args:
        strategy: TensorFlow's strategy.
        index: this process's number among them.
        count: how many they are.
    """

    def __init__(self, strategy: tf.distribute.Strategy, index: int = 0, count: int = 1, *, is_chief: bool = True) -> None:
        self._strategy, self._index, self._count, self.is_chief = strategy, index, count, is_chief

    def sums(self, *values: int) -> list[int]:
        """Adds up integers over all processes."""
        if self._count == 1:
            return list(values)
        return [int(value) for value in self._sums(tf.constant(values, tf.int64)).numpy()]

    def any(self, flag: bool) -> bool:
        """Says whether the flag is set in any process."""
        return self.sums(int(flag))[0] > 0

    def chiefs(self, *values: int) -> list[int]:
        """Gives the chief's values to all."""
        return self.sums(*(value if self.is_chief else 0 for value in values))

    def chiefs_text(self, text: str) -> str:
        """Gives the chief's text to all."""
        return text if self._count == 1 else self._text_of(self._chief, text)

    def barrier(self) -> None:
        """Returns when all processes have come here."""
        self.sums(0)

    def require_same(self, what: str, digests_of: Callable[[], Mapping[str, int]]) -> None:
        """Makes sure that all processes have the same as the chief.

        Args:
            what: what is compared, for the message.
            digests_of: gives name -> a hash; not asked where there is one process.

        Raises:
            DivergedError: in every process, if any of them differs; names the first that does, and what differs there.
        """

        def difference(mine: list[str], chiefs: list[str]) -> str | None:
            names = [line.partition(" ")[2] for line, other in zip_longest(mine, chiefs, fillvalue="") if line != other]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            return f"{what} of worker-{self._index} differ from the chief's: {', '.join(names[:3])}{more}" if names else None

        self.require_alike(lambda: [f"{digest:x} {name}" for name, digest in digests_of().items()], difference)

    def require_alike(self, lines_of: Callable[[], list[str]], difference: Callable[[list[str], list[str]], str | None]) -> None:
        """Makes sure that all processes have lines like the chief's.

        Args:
            lines_of: gives this process's lines; not asked where there is one process.
            difference: compares its first argument, lines of here, with its second, the chief's; gives what is wrong, if anything.

        Raises:
            DivergedError: in every process, if any of them differs; says how the first that does.
        """
        if self._count == 1:
            return
        mine = lines_of()
        problem = difference(mine, self._text_of(self._chief, "\n".join(mine)).split("\n")) or ""
        differing = self._flags(bool(problem))
        if any(differing):
            raise DivergedError(self._text_of(differing.index(1), problem))

    @property
    def _chief(self) -> int:
        return self._flags(self.is_chief).index(1)

    def _flags(self, flag: bool) -> list[int]:
        """Gives the flag of each process, in their order."""
        return self.sums(*(int(flag and number == self._index) for number in range(self._count)))

    def _text_of(self, index: int, text: str) -> str:
        """Gives one process's text to all, in numbers of six bytes, which a sum can carry."""
        content = text.encode() if index == self._index else b""
        (size,) = self.sums(len(content))
        content = content.ljust(size + -size % 6, b"\0")
        numbers = self.sums(*(int.from_bytes(content[at : at + 6]) for at in range(0, len(content), 6)))
        return b"".join(number.to_bytes(6) for number in numbers)[:size].decode()

    @tf.function(autograph=False)
    def _sums(self, values: tf.Tensor) -> tf.Tensor:
        def of_replica(values: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

        local: Sequence[tf.Tensor] = self._strategy.experimental_local_results(self._strategy.run(of_replica, args=(values,)))
        return local[0] // len(local)  # each replica of a process has contributed
