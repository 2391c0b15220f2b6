"""The processes that run every step together, and what they must decide alike.

A step, an evaluation and a save are collective: a process that stops, evaluates or saves alone leaves the others waiting. So
whatever only one process knows (a signal, a clock, the disk) is agreed here, by all of them and at the same point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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

    def barrier(self) -> None:
        """Returns when all processes have come here."""
        self.sums(0)

    def require_same(self, what: str, digests_of: Callable[[], Mapping[str, int]]) -> None:
        """Makes sure that all processes have the same as the chief.

        Args:
            what: what is compared, for the message.
            digests_of: gives name -> a hash of less than 48 bits, in the same order everywhere; not asked where there is one process.

        Raises:
            DivergedError: in every process, if any of them differs; names the processes, and what differs here.
        """
        if self._count == 1:
            return
        digests = digests_of()
        different = [
            name for name, mine, chiefs in zip(digests, digests.values(), self.chiefs(*digests.values()), strict=True) if mine != chiefs
        ]
        who = self.sums(*(int(bool(different) and number == self._index) for number in range(self._count)))
        if any(who):
            names = ", ".join(f"worker-{number}" for number, differs in enumerate(who) if differs)
            here = (
                f"; here: {', '.join(different[:3])}{f' and {len(different) - 3} more' if len(different) > 3 else ''}" if different else ""
            )
            raise DivergedError(f"{what} differ between the processes: {names} from the chief's{here}")

    def require_alike(self, lines_of: Callable[[], list[str]], difference: Callable[[list[str], list[str]], str | None]) -> None:
        """Makes sure that all processes have lines like the chief's.

        Args:
            lines_of: gives this process's lines; not asked where there is one process.
            difference: compares its first argument, lines of here, with its second, the chief's; gives what is wrong, if anything.

        Raises:
            DivergedError: in every process, if any of them differs; where it does, the message says how.
        """
        if self._count == 1:
            return
        mine = lines_of()
        problem = difference(mine, self._chiefs_text("\n".join(mine)).split("\n"))
        if self.any(problem is not None):
            raise DivergedError(problem or "another process differs from the chief; its log says how")

    def _chiefs_text(self, text: str) -> str:
        """Gives the chief's text to all, in numbers of six bytes, which any sum can carry."""
        content = text.encode()
        size = max(self.sums(*(len(content) if number == self._index else 0 for number in range(self._count))))
        content = content.ljust(size + -size % 6, b"\0")
        numbers = self.chiefs(*(int.from_bytes(content[at : at + 6]) for at in range(0, len(content), 6)))
        return b"".join(number.to_bytes(6) for number in numbers).rstrip(b"\0").decode()

    @tf.function(autograph=False)
    def _sums(self, values: tf.Tensor) -> tf.Tensor:
        def of_replica(values: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

        local: Sequence[tf.Tensor] = self._strategy.experimental_local_results(self._strategy.run(of_replica, args=(values,)))
        return local[0] // len(local)  # each replica of a process has contributed
