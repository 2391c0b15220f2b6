"""A process that only serves: it holds variables, or runs what the chief sends it, until the run is over.

Servers that the chief's own program started are told by it when to leave. In a cluster that was declared every process has a
program of its own, perhaps on another machine, so the chief and its servers leave each other word in files beside the logs.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path

import tensorflow as tf

from trainer.channel import Channel
from trainer.cluster import Cluster, Task
from trainer.files import write_atomically

_LOOK_SECS = 1.0
_STOP, _FINISHED, _STOPPED = "stop", "finished", "stopped"


class Servers:
    """The servers of a declared cluster, as the chief knows them; of another it knows none, for they need no word from it.

    Args:
        cluster: the cluster as the chief sees it.
        jobs: the jobs of those that serve.
        run_dir: the run directory.
    """

    def __init__(self, cluster: Cluster, jobs: Collection[str], run_dir: Path) -> None:
        tasks = [Task(job, index) for job in jobs for index in range(len(cluster.jobs.get(job, ())))]
        self._words = [] if cluster.source == "local" else [_word(run_dir, task) for task in tasks]

    def want_to_stop(self) -> bool:
        """Says whether one of them was asked to stop: then all save and stop."""
        return any(_read(word) == _STOP for word in self._words)

    def dismiss(self, *, finished: bool) -> None:
        """Lets them go, the run being finished or stopped on request."""
        for word in self._words:
            write_atomically(word, _FINISHED if finished else _STOPPED)


def serve(cluster: Cluster, run_dir: Path, channel: Channel, stop: Callable[[], bool]) -> bool:
    """Serves; a server that the same program started is told when to leave, any other reads it.

    It does not leave when it is asked to stop: the chief must still be able to save. It only passes that on.

    Returns:
        Whether the run was finished, or stopped on request.
    """
    word, is_local, asked = _word(run_dir, cluster.task), cluster.source == "local", False
    if not is_local:
        write_atomically(word, "")
    server = _start(cluster)
    channel.phase("serve", 0)
    channel.line(f"Serving at {server.target}")
    while is_local or _read(word) not in (_FINISHED, _STOPPED):
        time.sleep(_LOOK_SECS)
        if stop() and not is_local and not asked:
            asked = True
            write_atomically(word, _STOP)
        # Whoever supervises says that the chief of a declared cluster is awaited, also after a crash of it, and gives up in the end.
        channel.phase("serve" if is_local or _answers(cluster.jobs["chief"][0]) else "join", 0)
    finished = _read(word) == _FINISHED
    word.unlink()
    return finished


def _start(cluster: Cluster) -> tf.distribute.Server:
    config = tf.compat.v1.ConfigProto()
    # A chunk of steps and the chief's own calls must be able to wait for one another here, also with fewer cores than that.
    config.inter_op_parallelism_threads = max(os.cpu_count() or 1, len(cluster.jobs["worker"]) + 1)
    return tf.distribute.Server(
        {job: list(addresses) for job, addresses in cluster.jobs.items()},
        job_name=cluster.task.job,
        task_index=cluster.task.index,
        protocol="grpc",
        config=config,
    )


def _word(run_dir: Path, task: Task) -> Path:
    return run_dir / "logs" / f"{task}.word"


def _read(word: Path) -> str:
    try:
        return word.read_text()
    except FileNotFoundError:
        return ""


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
