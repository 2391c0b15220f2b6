"""Opens a run, which an earlier start of the same job may still use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from trainer.cluster import environment
from trainer.cluster.schedulers.scheduler import schedulers
from trainer.cluster.spec import Cluster
from trainer.cluster.stop_requests import StopRequests
from trainer.errors import ConfigError, StorageError
from trainer.launch.display.console import Console
from trainer.launch.resolved_run import Command
from trainer.runs.directory import RunDirectory, RunInUseError, join_run, open_run

_SECS = 180.0  # more than schedulers take to kill a process, and NFS to drop a lost host's locks
_POLL_SECS = 1.0
_T = TypeVar("_T")


def open_directory(
    command: Command, cluster: Cluster, console: Console, requests: StopRequests
) -> RunDirectory | None:
    """Find or create the run directory; in a job of a scheduler, wait until nobody else uses it.

    Args:
        command: what the user has typed.
        cluster: says whether this process is the chief's, which uses the directory alone.
        console: shows what is waited for.
        requests: a stop among them ends the wait.

    Returns:
        The directory; None: a stop was requested before.

    Raises:
        ConfigError: another process uses it, or its run cannot continue as this experiment.
        StorageError: it cannot be written to.
    """
    if not cluster.is_chief:
        return join_run(command.experiment, str(cluster.process_id))
    return when_free(lambda: _open(command), console, requests)


def _open(command: Command) -> RunDirectory:
    try:
        return open_run(command.experiment, command.overrides, command.config_dir)
    except StorageError as error:
        # As in /proc, or in another user's folder: the same command will not succeed later.
        if isinstance(error.__cause__, FileNotFoundError | PermissionError):
            raise ConfigError(f"{error}; choose another folder by runs_dir=<directory>") from error
        raise


def when_free(use_run: Callable[[], _T], console: Console, requests: StopRequests) -> _T | None:
    """Return what `use_run` returns; in a job of a scheduler, wait until nobody else uses the run.

    Args:
        use_run: takes the run; called again after a RunInUseError.
        console: shows what is waited for.
        requests: a stop among them ends the wait.

    Returns:
        What it returns; None: a stop was requested before.

    Raises:
        RunInUseError: another process uses the run, still after the wait if there is one.
    """
    variables = environment.current()
    waits = any(scheduler.starts_jobs_again(variables) for scheduler in schedulers())
    end = time.monotonic() + _SECS
    is_told = False
    while True:
        try:
            return use_run()
        except RunInUseError as error:
            if not waits or time.monotonic() >= end:
                raise
            if not is_told:
                is_told = True
                console.line(
                    f"warning: {error.run} is in use by {error.holder}, perhaps of this job's "
                    f"last start; waiting up to {_SECS:g} s for its end"
                )
        if requests.wait(_POLL_SECS):
            return None
