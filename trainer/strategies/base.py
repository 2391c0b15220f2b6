"""What a strategy is: which processes and devices train, how they start, and what the engine must know of them.

Every strategy is one class in one file here, or in a user's own package. It is made in the parent process too, so that only
`start` may touch TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from trainer.cluster import Cluster, Task

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.step import Exchange


class Strategy:
    """A strategy of one process; others override what differs.

    Attributes:
        joins: whether a cluster that is declared concerns it.
        cannot: what is wrong or crashes under it; names of rows in `trainer.refusals`.
        servers: jobs whose processes train nothing themselves, but do what the chief sends them.
        replaceable: jobs of which a process that was lost is started again alone; the loss of any other ends the attempt.
        asynchronous: whether the chief hands out chunks of steps, instead of all processes running the same step together.
        optimizer_reduces: whether the optimizer's own reduction over the replicas cannot be left out.
        input_outside: whether the input must be a tf.data pipeline outside the replicas, even for data in memory.
        start_timeout_secs: how long a process waits for the others to start.
        isolate: whether a cluster that is started here gets a network of its own: auto, True or False.
        hosts: the hosts that the user wants the commands for.
    """

    joins: ClassVar[bool] = False
    cannot: ClassVar[frozenset[str]] = frozenset()
    servers: ClassVar[frozenset[str]] = frozenset()
    replaceable: ClassVar[frozenset[str]] = frozenset()
    asynchronous: ClassVar[bool] = False
    optimizer_reduces: ClassVar[bool] = False
    input_outside: ClassVar[bool] = False
    start_timeout_secs: float = 0.0
    isolate: str | bool = False
    hosts: list[str] | None = None

    def resolve(self, cluster: Cluster, count_gpus: Callable[[], int] | None = None) -> tuple[Strategy, str | None]:
        """Gives the strategy that is meant, and a line that says why; asked before anything else here but `tasks`.

        Args:
            cluster: the cluster as this process sees it; without jobs if there is none.
            count_gpus: counts the GPUs; None: nobody can without TensorFlow, so what depends on them stays undecided.
        """
        return self, None

    def num_replicas(self) -> int | None:
        """Gives the number of replicas, or None if it takes TensorFlow to tell (it counts the GPUs)."""
        return None

    def tasks(self, count: int | None) -> list[Task]:
        """Gives the tasks of a cluster of `count` processes; None: of as many as are configured. Empty: it needs no cluster."""
        return []

    def check(self, cluster: Cluster) -> None:
        """Checks, without TensorFlow, what would otherwise be seen minutes later or never.

        Args:
            cluster: the cluster as this process sees it; without jobs if there is none.

        Raises:
            ConfigError: it cannot work here.
        """

    def exchange(self, peak: tf.Variable) -> Exchange | None:
        """Gives how gradients are summed over the replicas, once it has started; None: as one reduction of TensorFlow's.

        Args:
            peak: the largest absolute value of the last sum, float32, in every checkpoint; for the exchange to use.
        """
        return None

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Creates TensorFlow's strategy, before anything else uses its devices; waits for the other processes if there are any.

        Raises:
            ConfigError: it cannot work on this machine's devices.
        """
        raise NotImplementedError
