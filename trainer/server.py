"""A process that only serves: it holds variables, or runs what the chief sends it, until the run is over."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from trainer.channel import Channel
from trainer.cluster import Cluster

_LOOK_SECS = 1.0


def serve(cluster: Cluster, run_dir: Path, channel: Channel, stop: Callable[[], bool]) -> bool:
    """Serves; a server that the same program started is told when to leave, any other sees it.

    It does not leave when it is asked to stop: the chief must still be able to save. Only when the chief is gone.

    Returns:
        Whether the run was finished, or stopped on request.
    """
    began, asked, seen = time.time(), False, False
    config = tf.compat.v1.ConfigProto()
    # A chunk of steps and the chief's own calls must be able to wait for one another here, also with fewer cores than that.
    config.inter_op_parallelism_threads = max(os.cpu_count() or 1, len(cluster.jobs["worker"]) + 1)
    server = tf.distribute.Server(
        {job: list(addresses) for job, addresses in cluster.jobs.items()},
        job_name=cluster.task.job,
        task_index=cluster.task.index,
        protocol="grpc",
        config=config,
    )
    channel.phase("serve", 0)
    channel.line(f"Serving at {server.target}")
    while True:
        time.sleep(_LOOK_SECS)
        if stop() and not asked:
            asked = True
            channel.stop()
        if cluster.source == "local":
            continue  # until the supervisor says so
        there = _answers(cluster.jobs["chief"][0])
        seen = seen or there
        if seen and not there:
            if (run_dir / "result.json").exists() and (run_dir / "result.json").stat().st_mtime > began:
                return True
            if asked:
                return False
        elif asked and not seen:
            return False


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
