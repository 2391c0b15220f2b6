"""A process that serves: it holds variables, or runs what the chief sends it, until the run ends.

Servers that the chief's own supervisor started are dismissed by that. In a declared cluster every
process has its own supervisor, perhaps on another machine, so the chief and its servers leave
each other notes: files next to the logs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.cluster.ports import is_listening
from trainer.cluster.spec import Cluster, ProcessId
from trainer.files import read_text, write_atomically
from trainer.strategies import devices

_POLL_SECS = 1.0
_STOP = "stop"
_FINISHED = "finished"
_STOPPED = "stopped"


class ParameterServerControl:
    """The chief's side of the servers of a declared cluster; elsewhere it does nothing."""

    def __init__(self, cluster: Cluster, jobs: Collection[str], run_dir: Path) -> None:
        process_ids = [
            ProcessId(job, index) for job in jobs for index in range(len(cluster.jobs.get(job, ())))
        ]
        self._notes = (
            [] if cluster.is_local else [_note(run_dir, process_id) for process_id in process_ids]
        )

    def stop_requested(self) -> bool:
        """Return whether a server received a stop request: then all save and stop."""
        return any(_read(note) == _STOP for note in self._notes)

    def dismiss(self, *, finished: bool) -> None:
        """Let the servers exit, because the run is finished or stopped on request."""
        for note in self._notes:
            write_atomically(note, _FINISHED if finished else _STOPPED)


def serve(cluster: Cluster, run_dir: Path, channel: Channel, stop: Callable[[], bool]) -> bool:
    """Serve until dismissed: by the supervisor in a local cluster, else by the chief's note.

    A request to stop is only passed on to the chief, which still needs the server to save. Returns
    False if the run was stopped on request.
    """
    note = _note(run_dir, cluster.process_id)
    is_local = cluster.is_local
    stop_sent = False
    if not is_local:
        write_atomically(note, "")
    server = _start_server(cluster)
    channel.phase("serve", 0)
    channel.line(f"Serving at {server.target}")
    while is_local or _read(note) not in (_FINISHED, _STOPPED):
        time.sleep(_POLL_SECS)
        if stop() and not is_local and not stop_sent:
            stop_sent = True
            write_atomically(note, _STOP)
        # In phase `join` the supervisor reports that the chief is awaited, also after the chief has
        # crashed, and gives up in the end.
        channel.phase("serve" if is_local or is_listening(cluster.jobs["chief"][0]) else "join", 0)
    finished = _read(note) == _FINISHED
    note.unlink()
    return finished


def _start_server(cluster: Cluster) -> tf.distribute.Server:
    config = tf.compat.v1.ConfigProto()
    # Chunks of steps and the chief's calls wait for one another, so each needs a thread here, even
    # with fewer cores.
    config.inter_op_parallelism_threads = max(os.cpu_count() or 1, len(cluster.jobs["worker"]) + 1)
    # A server creates its own devices; TensorFlow's visible devices do not apply to them.
    config.device_count["GPU"] = devices.count_gpus()
    return tf.distribute.Server(
        {job: list(addresses) for job, addresses in cluster.jobs.items()},
        job_name=cluster.process_id.job,
        task_index=cluster.process_id.index,
        protocol="grpc",
        config=config,
    )


def _note(run_dir: Path, process_id: ProcessId) -> Path:
    return run_dir / "logs" / f"{process_id}.note"


def _read(note: Path) -> str:
    try:
        return read_text(note)
    except FileNotFoundError:
        return ""
